// Golden samples: from their files through preprocessing and a runtime to a verdict. The same in
// browsers and in Node; how a PNG file is decoded is injected.

import { BundleError } from './bundle.js';
import { parseNpy } from './npy.js';
import { preprocess } from './preprocess.js';

async function readInput(bundle, input, path, decode) {
  const bytes = await bundle.file(path);
  if (path.endsWith('.npy')) return parseNpy(bytes);
  if (path.endsWith('.png')) return preprocess(await decode(bytes), input);
  throw new BundleError(`golden input ${path} is neither .png nor .npy`, { path });
}

/**
 * Reads a sample as a batch of one.
 *
 * @param {Bundle} bundle
 * @param {object} sample An entry of golden/samples.json.
 * @param {(png: Uint8Array) => object} decode Gives pixels as preprocess.js takes them, or a promise.
 * @returns {Promise<Object<string, {data: ArrayLike<number>, shape: number[]}>>} By input name.
 */
export async function readSample(bundle, sample, decode) {
  const inputs = {};
  for (const input of bundle.manifest.inputs) {
    const { data, shape } = await readInput(bundle, input, sample.inputs[input.name], decode);
    inputs[input.name] = { data, shape: [1, ...shape] };
  }
  return inputs;
}

/** Runs a sample; returns flat values by output name. */
export async function runSample(bundle, runtime, sample, decode) {
  const outputs = await runtime.run(await readSample(bundle, sample, decode));
  return Object.fromEntries(Object.entries(outputs).map(([name, { data }]) => [name, [...data]]));
}

// The largest absolute difference; infinite when lengths differ or a stored value is not finite.
function maxDifference(stored, values) {
  if (stored.length !== values.length) return Infinity;
  let largest = 0;
  for (let i = 0; i < values.length; i += 1) {
    const difference = Math.abs(values[i] - stored[i]);
    if (!Number.isFinite(difference)) return Infinity;
    largest = Math.max(largest, difference);
  }
  return largest;
}

async function compareSample(bundle, stored, values, tolerances) {
  let worst = { difference: 0, excess: -Infinity };
  for (const { name } of bundle.manifest.outputs) {
    const expected = await bundle.values(stored[name]);
    const tolerance = tolerances[name];
    if (!Number.isFinite(tolerance)) throw new BundleError(`no tolerance is stored for ${name}`);
    const difference = maxDifference(expected, values[name]);
    const excess = difference - tolerance;
    if (excess > worst.excess) worst = { difference, excess };
  }
  return worst;
}

/** The id of the first sample with an output that is NaN or infinite; undefined if there is none. */
export function firstNotFinite(bySample) {
  const isFinite = (outputs) => Object.values(outputs).every((v) => v.every(Number.isFinite));
  return Object.keys(bySample).find((id) => !isFinite(bySample[id]));
}

/**
 * Compares an artifact's outputs with those that the build machine stored.
 *
 * @param {Bundle} bundle
 * @param {string} id The artifact.
 * @param {object} golden As `Bundle.golden` gives it.
 * @param {Object<string, Object<string, number[]>>} bySample Flat values by sample and output.
 * @returns {Promise<object>} An entry of `artifacts` in docs/bundle.md, "What the runners answer".
 */
export async function compare(bundle, id, golden, bySample) {
  const samples = golden.samples.length;
  const bad = firstNotFinite(bySample);
  if (bad !== undefined) {
    const reason = `sample ${bad}: an output is NaN or infinite`;
    return { id, status: 'failed', samples, worst_sample: bad, reason };
  }
  const tolerances = golden.tolerances[id];
  const stored = golden.samples.filter((sample) => sample.artifacts?.[id] !== undefined);
  if (stored.length === 0) return { id, status: 'recorded', samples, reason: 'nothing is stored' };
  if (tolerances === undefined) throw new BundleError('no tolerance is stored');
  let worst = { difference: -1, excess: -Infinity };
  for (const sample of stored) {
    const found = await compareSample(
      bundle, sample.artifacts[id], bySample[sample.id], tolerances,
    );
    if (found.excess > worst.excess) worst = { ...found, sample: sample.id };
  }
  const finite = Number.isFinite(worst.difference);
  const passed = worst.excess <= 0;
  const why = finite ? 'outside the tolerance' : 'not finite, or of another length';
  return {
    id, status: passed ? 'passed' : 'failed', samples: stored.length,
    // JSON has no infinity.
    ...(finite ? { max_abs_diff: worst.difference } : {}),
    worst_sample: worst.sample, reason: passed ? '' : `sample ${worst.sample}: ${why}`,
  };
}
