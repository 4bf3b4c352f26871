// The page: opens the bundle and connects what it shows.
//
// Addresses: `?bundle=URL` opens another bundle, `?runtime=ID` (or `auto`) chooses what runs it.

import { loadBundle } from '../packager.js';
import * as answer from './answer.js';
import * as card from './card.js';
import * as device from './device.js';
import { $, clearNotice, make, msText, notify } from './dom.js';
import * as inputs from './inputs.js';
import { keep, prepare } from './offline.js';

const REPEATS = 5;

function setStatus(text, state) {
  $('status-text').textContent = text;
  $('status').dataset.state = state;
}

function showProgress({ stage, loaded, total }) {
  const share = total > 0 ? loaded / total : 0;
  $('progress-bar').style.transform = `scaleX(${share})`;
  $('progress').setAttribute('aria-valuenow', String(Math.round(100 * share)));
  const kilobytes = (bytes) => Math.round(bytes / 1000).toLocaleString('en');
  setStatus(stage === 'check' ? 'comparing with the build machine'
    : `loading ${kilobytes(loaded)} of ${kilobytes(total)} kB`, 'busy');
}

// One prediction at a time. `now` waits its turn; of those that come by `latest` meanwhile only
// the last is run.
function makePredictor(model) {
  const { task } = model.manifest;
  let turn = Promise.resolve();
  let waiting;

  function now(given) {
    const mine = turn.then(async () => {
      const result = await model.predict(given);
      answer.show(result, task);
      return result;
    });
    turn = mine.catch(() => {});
    return mine;
  }

  async function latest(given) {
    const isIdle = waiting === undefined;
    waiting = given;
    if (!isIdle) return;
    await turn;
    const chosen = waiting;
    waiting = undefined;
    await now(chosen).catch(notify);
  }

  return { now, latest };
}

function addRow(task, name, result, error) {
  $('results').hidden = false;
  const cells = error ? [error.message, '', ''] : [
    answer.brief(result, task).label, answer.brief(result, task).score, result.totalMs.toFixed(1),
  ];
  $('rows').append(make('tr', {}, make('td', {}, name), make('td', { className: error ? 'failed' : '' }, cells[0]),
    make('td', { className: 'n' }, cells[1]), make('td', { className: 'n' }, cells[2])));
}

function whyText(model, times) {
  const { id, check, title } = model.runtime;
  const checked = check.status === 'passed'
    ? `compared on ${check.samples === 1 ? 'a golden sample' : `${check.samples} golden samples`}` : 'not compared: no golden samples';
  if (times === undefined) return `${title}; ${checked}`;
  const mine = times.find((one) => one.id === id);
  const place = times.length > 1 && mine === times[0] ? ', the fastest of ' + times.length : '';
  return mine ? `${title}${place} (${msText(mine.p50_ms)}); ${checked}` : `${title}; ${checked}`;
}

function watchRuntime(model) {
  const show = (times) => {
    const { title, threads } = model.runtime;
    setStatus(threads > 1 ? `${title}, ${threads} threads` : title, 'ready');
    $('why').textContent = whyText(model, times);
    answer.forgetTimes();
    device.showRuntime(model);
  };
  model.addEventListener('runtime', () => show());
  model.addEventListener('lost', ({ detail }) => notify(detail));
  show();
  return show;
}

function keepLoaded(model) {
  const urls = performance.getEntriesByType('resource').map(({ name }) => name);
  keep([...urls, ...model.runtime.loaded]);
}

async function open() {
  const query = new URLSearchParams(location.search);
  const runtime = query.get('runtime') ?? 'auto';
  const model = await loadBundle(query.get('bundle') ?? '../', {
    runtime, onProgress: showProgress, tune: false,
  });
  const { name, version, task } = model.manifest;
  document.title = name;
  $('name').replaceChildren(name, make('sup', {}, `v${version}`));
  $('summary').textContent = card.summaryOf(model.manifest);
  $('progress').classList.add('done');
  card.show(model.manifest, model.candidates);
  device.start(model, runtime === 'auto');
  const showRuntime = watchRuntime(model);
  await inputs.start(model, makePredictor(model), (...row) => addRow(task, ...row));
  return { model, showRuntime, isAuto: runtime === 'auto' };
}

async function tune({ model, showRuntime, isAuto }) {
  if (!isAuto || !model.isUntuned) return;
  setStatus('measuring the runtimes', 'busy');
  const times = await model.chooseFastest();
  showRuntime(times);
  await inputs.again(REPEATS);
}

async function main() {
  $('notice-close').addEventListener('click', clearNotice);
  if (!await prepare()) return;
  try {
    const opened = await open();
    document.documentElement.dataset.state = 'ready';
    keepLoaded(opened.model);
    await tune(opened);
    keepLoaded(opened.model);
    document.documentElement.dataset.state = 'tuned';
  } catch (error) {
    setStatus('not loaded', 'failed');
    $('progress').classList.add('done');
    notify(error);
    document.documentElement.dataset.state = 'failed';
  }
}

main();
