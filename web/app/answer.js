// The answer: the label, its bars, and how long it took.

import { $, make, msText, paint, percentText } from './dom.js';

const RECENT = 30;
const SHOWN_VALUES = 6;
const LONG_LABEL = 9;

const recent = { ms: [], total: [], ends: [] };
let hasAnswered = false;

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)];
}

function remember(list, value) {
  list.push(value);
  if (list.length > RECENT) list.shift();
}

// Answers per second while they follow each other; a pause starts anew.
function rate() {
  const { ends } = recent;
  const last = ends.at(-1);
  let first = ends.length - 1;
  while (first > 0 && ends[first] - ends[first - 1] < 1000) first -= 1;
  const seconds = (last - ends[first]) / 1000;
  return ends.length - first > 2 && seconds > 0 ? (ends.length - 1 - first) / seconds : undefined;
}

function bar({ label, score, present }, isFirst) {
  const fill = make('span', { className: 'fill' });
  fill.style.transform = `scaleX(${Math.max(0, Math.min(1, score))})`;
  const track = make('span', { className: 'track', 'aria-hidden': 'true' }, fill);
  const name = make('span', { className: 'name', title: label }, label);
  const text = make('span', { className: 'score' }, percentText(score));
  return make('li', { className: isFirst || present ? 'first' : '' }, name, text, track);
}

// The bars stay the same elements while the answers stream, so that they move and do not flicker.
function showBars(answers) {
  const list = $('bars');
  const sameCount = list.children.length === answers.length && list.dataset.kind === 'bars';
  if (!sameCount) {
    list.replaceChildren(...answers.map((one, i) => bar(one, i === 0)));
    list.dataset.kind = 'bars';
    return;
  }
  answers.forEach(({ label, score, present }, i) => {
    const item = list.children[i];
    item.className = i === 0 || present ? 'first' : '';
    item.querySelector('.name').textContent = label;
    item.querySelector('.score').textContent = percentText(score);
    item.querySelector('.fill').style.transform = `scaleX(${Math.max(0, Math.min(1, score))})`;
  });
}

const numberText = (value) => Number(value.toPrecision(5)).toString();

function showValues(outputs) {
  const list = $('bars');
  list.dataset.kind = 'values';
  list.replaceChildren(...Object.entries(outputs).map(([name, { data, shape }]) => {
    const values = [...data.subarray(0, SHOWN_VALUES)].map(numberText).join(', ');
    const more = data.length > SHOWN_VALUES ? ', …' : '';
    const size = shape.slice(1).join(' × ') || '1';
    return make('li', {}, make('span', { className: 'name' }, `${name} (${size})`),
      make('span', { className: 'score' }, values + more));
  }));
}

function headline({ answers, outputs }, task) {
  if (task === 'multilabel') {
    return answers.filter(({ present }) => present).map(({ label }) => label).join(', ') || 'none';
  }
  if (answers.length > 0) return answers[0].label;
  const first = Object.values(outputs)[0].data;
  return first.length === 1 ? numberText(first[0]) : `${first.length} values`;
}

/** What a result says, in a few words: for tables. */
export function brief(result, task) {
  const [best] = result.answers;
  return { label: headline(result, task), score: best ? percentText(best.score) : '' };
}

/** Shows a result of `model.predict`. */
export function show(result, task) {
  const text = headline(result, task);
  const label = $('label');
  label.classList.toggle('long', text.length > LONG_LABEL);
  if (label.textContent !== text) label.textContent = text;
  if (result.answers.length > 0) showBars(result.answers);
  else showValues(result.outputs);
  if (result.view !== undefined) {
    paint($('view'), result.view);
    $('seen').hidden = false;
  }
  if (!hasAnswered) performance.mark('packager:first-answer');
  hasAnswered = true;
  remember(recent.ms, result.ms);
  remember(recent.total, result.totalMs);
  remember(recent.ends, performance.now());
  $('latency').textContent = msText(median(recent.ms));
  $('total').textContent = msText(median(recent.total));
  const perSecond = rate();
  $('rate').textContent = perSecond === undefined ? '–' : perSecond.toFixed(perSecond < 10 ? 1 : 0);
}

/** Forgets times: those of another runtime are other times. */
export function forgetTimes() {
  for (const list of Object.values(recent)) list.length = 0;
}
