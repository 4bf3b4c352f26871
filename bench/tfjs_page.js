// The page of bench/tfjs.py: loads models in turn, and runs them in turn, round by round.

import { readTfjs } from '/web/bundle.js';
import { load } from '/web/runtimes/tfjs.js';
import { loadAndCompile, loadLiteRt, Tensor } from '/web/vendor/litert/core.js';

// A round of a small model repeats it until the clock, of 0.1 ms, is fine enough.
const LEAST_MS = 10;

const bytesOf = async (url) => new Uint8Array(await (await fetch(url)).arrayBuffer());

async function openTfjs({ url, card }) {
  const source = await readTfjs(url, bytesOf);
  const runtime = await load(window.tf, source, card, { backend: 'wasm' });
  const [name] = runtime.describe().inputs;
  return async (input) => Object.values(await runtime.run({ [name]: input }))[0].data;
}

async function openLiteRt({ url }) {
  const model = await loadAndCompile(await bytesOf(url), { accelerator: 'wasm' });
  return async ({ data, shape }) => {
    const [output] = await model.run(new Tensor(data, shape));
    const values = output.toTypedArray();
    output.delete();
    return values;
  };
}

async function timed(run, input, times) {
  const start = performance.now();
  for (let i = 0; i < times; i += 1) await run(input);
  return (performance.now() - start) / times;
}

/**
 * Measures models side by side.
 *
 * @param {{name: string, kind: string, url: string, card: object}[]} models
 * @param {number[]} shape Of the input, with the batch axis.
 * @param {number} rounds
 * @returns {Promise<object>} By name: `load` and `first` in ms, `runs` in ms, `output`.
 */
window.measure = async (models, shape, rounds) => {
  window.tf.enableProdMode();
  window.tf.wasm.setWasmPaths('/web/vendor/');
  await window.tf.setBackend('wasm');
  // The build with one thread, as TF.js has without cross-origin isolation.
  await loadLiteRt('/web/vendor/litert/wasm/litert_wasm_compat_internal.js');
  const size = shape.reduce((product, n) => product * n, 1);
  // The same numbers in each run, smooth as an image is.
  const data = Float32Array.from({ length: size }, (_, i) => Math.sin(i / 97) * Math.cos(i / 5003));
  const input = { data, shape, dtype: 'float32' };
  const found = {};
  const opened = [];
  for (const model of models) {
    const start = performance.now();
    const run = await (model.kind === 'litert' ? openLiteRt(model) : openTfjs(model));
    const loaded = performance.now() - start;
    const first = await timed(run, input, 1);
    for (let i = 0; i < 5; i += 1) await run(input);
    const each = await timed(run, input, 3);
    opened.push({ name: model.name, run, times: Math.ceil(LEAST_MS / each) });
    found[model.name] = { load: loaded, first, runs: [], output: [...await run(input)] };
  }
  for (let round = 0; round < rounds; round += 1) {
    for (const { name, run, times } of opened) {
      found[name].runs.push(await timed(run, input, times));
    }
  }
  return found;
};

window.isReady = true;
