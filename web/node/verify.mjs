// `verify`: the hashes of a bundle's files, and its TF.js artifacts on the golden samples.

import { createHash } from 'node:crypto';
import { createReadStream, existsSync, readdirSync } from 'node:fs';
import os from 'node:os';
import { join, sep } from 'node:path';
import { pathToFileURL } from 'node:url';

import { isTfjs, openBundle, whyNot } from '../bundle.js';
import { compare, firstNotFinite, runSample } from '../golden.js';
import { isMissingKernel, withRuntime } from './evaluate.mjs';
import { fetchBelow, inside, OutsideError } from './files.mjs';
import { decodePng } from './png.mjs';
import { tfVersion, VendorMissing } from './tf.mjs';

const PACKAGE = '@tensorflow/tfjs';

// NAME/VERSION, or NAME for its newest version.
function bundleFolder(path) {
  const isBundle = (folder) => existsSync(join(folder, 'manifest.json'));
  if (isBundle(path) || !existsSync(path)) return path;
  const versions = readdirSync(path)
    .filter((name) => /^[0-9]+$/.test(name) && isBundle(join(path, name)))
    .sort((a, b) => Number(a) - Number(b));
  return versions.length === 0 ? path : join(path, versions.at(-1));
}

async function sha256OfFile(path) {
  const hash = createHash('sha256');
  for await (const piece of createReadStream(path)) hash.update(piece);
  return hash.digest('hex');
}

async function fileProblem(folder, name, sha256) {
  try {
    return (await sha256OfFile(inside(folder, name))) === sha256 ? '' : 'changed';
  } catch (error) {
    if (error instanceof OutsideError) return 'outside the bundle';
    return error.code === 'ENOENT' ? 'missing' : error.message;
  }
}

async function checkFiles(folder, files = {}) {
  const problems = [];
  for (const [path, { sha256 }] of Object.entries(files)) {
    const problem = await fileProblem(folder, path, sha256);
    if (problem !== '') problems.push({ path, problem });
  }
  return { checked: Object.keys(files).length, problems };
}

async function runSamples(bundle, artifact, golden, options) {
  const source = await bundle.tfjsFiles(artifact.id);
  return withRuntime(source, bundle.manifest, options, async (runtime) => {
    const bySample = {};
    for (const sample of golden.samples) {
      bySample[sample.id] = await runSample(bundle, runtime, sample, decodePng);
    }
    return { bySample, runtime: runtime.describe() };
  });
}

async function verifyArtifact(bundle, artifact, options) {
  const { id } = artifact;
  if (!isTfjs(artifact)) {
    const reason = `this runner does not run ${artifact.runtime.kind}`;
    return { result: { id, status: 'skipped', samples: 0, reason } };
  }
  const reason = whyNot(artifact, PACKAGE, tfVersion(options.vendor));
  if (reason !== '') {
    return { result: { id, status: 'skipped', samples: 0, reason }, lacking: true };
  }
  if (bundle.manifest.golden === undefined) {
    const without = 'the bundle has no golden samples: it was built with --no-verify';
    return { result: { id, status: 'skipped', samples: 0, reason: without } };
  }
  try {
    const golden = await bundle.golden();
    const { bySample, runtime } = await runSamples(bundle, artifact, golden, options);
    return { result: await compare(bundle, id, golden, bySample), bySample, runtime };
  } catch (error) {
    if (error instanceof VendorMissing) throw error;
    const hint = isMissingKernel(error) ? '; try --backend cpu' : '';
    return { result: { id, status: 'failed', samples: 0, reason: error.message + hint } };
  }
}

function machine() {
  return {
    system: `${os.type()} ${os.release()}`, architecture: os.arch(), node: process.version,
    cpus: os.cpus().length, cpu: os.cpus()[0]?.model ?? '',
  };
}

/**
 * Verifies a bundle.
 *
 * @param {string} path The bundle, or the folder of its versions.
 * @param {{artifact?: string, backend?: string, vendor: string}} options
 * @returns {Promise<{answer: object, recorded: object, lacking: boolean}>} The answer of
 *   docs/bundle.md, the flat values by artifact, sample and output, and whether everything was
 *   skipped because another TF.js is needed.
 */
export async function verify(path, options) {
  const folder = bundleFolder(path);
  const address = pathToFileURL(join(folder, sep)).href;
  const bundle = await openBundle(address, { fetch: fetchBelow(folder) });
  const chosen = options.artifact === undefined
    ? bundle.tfjsArtifacts() : [bundle.artifact(options.artifact)];
  const files = await checkFiles(folder, bundle.manifest.files);
  const answer = { runner: 'web', runtime: {}, machine: machine(), files, artifacts: [] };
  const recorded = {};
  let lacking = chosen.length > 0;
  for (const artifact of chosen) {
    const found = await verifyArtifact(bundle, artifact, options);
    const { result, bySample, runtime } = found;
    lacking &&= found.lacking === true;
    answer.artifacts.push(result);
    if (runtime !== undefined) answer.runtime = runtime;
    // JSON has no NaN either.
    if (bySample !== undefined && firstNotFinite(bySample) === undefined) {
      recorded[artifact.id] = bySample;
    }
  }
  return { answer, recorded, lacking };
}
