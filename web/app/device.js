// This device: which runtimes there are, what they answer and how fast.

import { $, bytesText, make, msText, notify } from './dom.js';

const RUNS = 30;

const words = { passed: 'passed', failed: 'failed', skipped: 'not here', recorded: 'not compared' };

function differenceText({ max_abs_diff: value }) {
  if (value === undefined) return '';
  return value === 0 ? '0' : value.toExponential(1);
}

function rowOf(result) {
  const { candidate, title, status, reason } = result;
  const check = make('td', { className: status ?? '' }, status ? words[status] : '');
  if (reason) check.append(make('span', { className: 'reason' }, reason));
  const number = (text) => make('td', { className: 'n' }, text);
  const ms = (value) => number(value === undefined ? '' : msText(value));
  const memory = result.memory_bytes;
  return make('tr', { 'data-candidate': candidate },
    make('td', {}, title), check, number(differenceText(result)),
    ms(result.load_ms), ms(result.first_ms), ms(result.p50_ms),
    number(memory === undefined ? '' : bytesText(memory)));
}

function markCurrent(id) {
  for (const row of $('runtimes').children) {
    row.classList.toggle('current', row.dataset.candidate === id);
  }
}

function replaceRow(result, current) {
  const old = [...$('runtimes').children].find(
    ({ dataset }) => dataset.candidate === result.candidate,
  );
  const row = rowOf(result);
  if (old) old.replaceWith(row);
  else $('runtimes').append(row);
  markCurrent(current);
}

function emptyRows(model) {
  $('runtimes').replaceChildren(...model.candidates.map(({ id, title, available, reason }) => rowOf({
    candidate: id, title, status: available ? undefined : 'skipped', reason: available ? '' : reason,
  })));
}

async function test(model, runs) {
  const buttons = [$('self-test'), $('benchmark')];
  buttons.forEach((button) => { button.disabled = true; });
  emptyRows(model);
  markCurrent(model.runtime.id);
  try {
    const onRow = (row) => replaceRow(row, model.runtime.id);
    const results = await model.selfTest({ runs, onRow });
    const link = $('export');
    URL.revokeObjectURL(link.href);
    link.href = URL.createObjectURL(new Blob([JSON.stringify(results, null, 2)], { type: 'application/json' }));
    link.hidden = false;
  } catch (error) {
    notify(error);
  } finally {
    buttons.forEach((button) => { button.disabled = false; });
  }
}

async function choose(model, id) {
  const select = $('runtime');
  select.disabled = true;
  try {
    await (id === 'auto' ? model.chooseFastest() : model.use(id));
  } catch (error) {
    notify(error);
    select.value = model.runtime.id;
  } finally {
    select.disabled = false;
  }
}

/** Shows what runs the model. */
export function showRuntime(model) {
  markCurrent(model.runtime.id);
}

/** Fills the selector and the table. */
export function start(model, isAuto) {
  const select = $('runtime');
  const options = model.candidates.map(({ id, title, available }) => make(
    'option', { value: id, disabled: !available }, available ? title : `${title} (not here)`,
  ));
  select.replaceChildren(make('option', { value: 'auto' }, 'auto: the fastest that passes'), ...options);
  select.value = isAuto ? 'auto' : model.runtime.id;
  select.disabled = false;
  select.addEventListener('change', () => choose(model, select.value));
  emptyRows(model);
  showRuntime(model);
  $('self-test').disabled = false;
  $('benchmark').disabled = false;
  $('self-test').addEventListener('click', () => test(model, 0));
  $('benchmark').addEventListener('click', () => test(model, RUNS));
}
