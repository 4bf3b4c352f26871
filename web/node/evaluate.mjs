// `run`: a model over many samples, batch by batch, from .npy files to .npy files.

import { mkdirSync, readFileSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';

import { readTfjs } from '../bundle.js';
import { RuntimeError } from '../runtimes/error.js';
import { load } from '../runtimes/tfjs.js';
import { inside } from './files.mjs';
import { NpyReader, NpyWriter } from './npy.mjs';
import { loadTf } from './tf.mjs';

// A tensor's name becomes that of a file.
function npyPath(folder, tensor) {
  if (/[/\\]/.test(tensor)) {
    throw new RuntimeError(`${tensor} is the name of a tensor and cannot be that of a file`);
  }
  return join(folder, `${tensor}.npy`);
}

/** True for what TF.js says when a back end has no implementation of an operation. */
export function isMissingKernel(error) {
  return /Kernel '.*' not registered for backend|not yet implemented/i.test(error.message);
}

/**
 * Runs an action with a model, on the back end asked for, else on wasm and, where that lacks an
 * operation, on cpu.
 *
 * @param {{json: object, weights: Uint8Array[]}} source
 * @param {object|undefined} card The manifest, or undefined for the card inside model.json.
 * @param {{backend?: string, vendor: string}} options
 * @param {(runtime: object) => Promise<T>} action Must be repeatable.
 * @returns {Promise<T>}
 */
export async function withRuntime(source, card, { backend, vendor }, action) {
  const attempt = async (name) => {
    const runtime = await load(await loadTf(vendor, name), source, card);
    try {
      return await action(runtime);
    } finally {
      runtime.dispose();
    }
  };
  if (backend !== undefined) return attempt(backend);
  try {
    return await attempt('wasm');
  } catch (error) {
    if (!isMissingKernel(error)) throw error;
    return attempt('cpu');
  }
}

function openInputs(folder, names) {
  const readers = names.map((name) => [name, new NpyReader(npyPath(folder, name))]);
  const counts = new Set(readers.map(([, { shape }]) => shape[0]));
  if (counts.size !== 1 || counts.has(0)) {
    throw new RuntimeError(
      `the inputs need the same number of samples, at least 1; they have ${[...counts].join(', ')}`,
    );
  }
  return { readers, count: [...counts][0] };
}

async function runAll(runtime, { readers, count }, folder, batch) {
  const writers = new Map();
  try {
    for (let start = 0; start < count; start += batch) {
      const end = Math.min(count, start + batch);
      const feed = readers.map(([name, reader]) => [name, reader.rows(start, end)]);
      const outputs = await runtime.run(Object.fromEntries(feed));
      for (const [name, { data, shape }] of Object.entries(outputs)) {
        if (shape[0] !== end - start) {
          throw new RuntimeError(`output ${name}: ${end - start} samples gave ${shape[0]}`);
        }
        if (!writers.has(name)) {
          const path = npyPath(folder, name);
          writers.set(name, new NpyWriter(path, 'float32', [count, ...shape.slice(1)]));
        }
        writers.get(name).append(data);
      }
    }
  } finally {
    writers.forEach((writer) => writer.close());
  }
}

/**
 * Runs a model over `inputs/<input name>.npy` and writes `outputs/<output name>.npy`.
 *
 * @param {string} modelPath model.json, with its shards beside it.
 * @param {{inputs: string, outputs: string, batch: number, backend?: string, vendor: string,
 *   layers?: string, logits?: boolean}} options Folders, samples per batch, back end, the vendor
 *   folder, and names of layers to write in place of the outputs, with commas between.
 * @returns {Promise<{count: number, seconds: number, runtime: object}>} `seconds` is the wall
 *   time of reading, running and writing, without loading the model.
 */
export async function evaluate(modelPath, options) {
  const folder = dirname(modelPath);
  const source = await readTfjs(
    basename(modelPath), async (path) => readFileSync(inside(folder, path)),
  );
  const card = source.json.userDefinedMetadata?.packager;
  if (card === undefined) throw new RuntimeError(`${modelPath} holds no card of packager`);
  const inputs = openInputs(options.inputs, card.inputs.map(({ name }) => name));
  mkdirSync(options.outputs, { recursive: true });
  try {
    return await withRuntime(source, card, options, async (runtime) => {
      if (options.layers !== undefined) {
        runtime.watch(options.layers.split(','), { logits: options.logits });
      }
      const start = performance.now();
      await runAll(runtime, inputs, options.outputs, options.batch);
      const seconds = (performance.now() - start) / 1000;
      return { count: inputs.count, seconds, runtime: runtime.describe() };
    });
  } finally {
    inputs.readers.forEach(([, reader]) => reader.close());
  }
}
