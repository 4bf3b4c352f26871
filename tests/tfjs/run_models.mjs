// Runs written models with the shipped code: node run_models.mjs VENDOR FOLDER BACKEND NAME…
// For each, FOLDER/NAME/tfjs/model.json on in.N.npy, into got.BACKEND.N.npy. Prints the models that
// failed, with the reason.

import { readFileSync } from 'node:fs';
import { join } from 'node:path';

import { NpyReader, NpyWriter } from '../../web/node/npy.mjs';
import { loadTf } from '../../web/node/tf.mjs';
import { load } from '../../web/runtimes/tfjs.js';

const [vendor, folder, backend, ...names] = process.argv.slice(2);

function source(target) {
  const json = JSON.parse(readFileSync(join(target, 'tfjs', 'model.json'), 'utf8'));
  const paths = json.weightsManifest.flatMap((group) => group.paths);
  return { json, weights: paths.map((path) => readFileSync(join(target, 'tfjs', path))) };
}

async function runModel(tf, target) {
  const runtime = await load(tf, source(target));
  const { inputs } = runtime.describe();
  const feed = {};
  inputs.forEach((name, i) => {
    const reader = new NpyReader(join(target, `in.${i}.npy`));
    feed[name] = reader.rows(0, reader.shape[0]);
    reader.close();
  });
  const outputs = await runtime.run(feed);
  runtime.describe().outputs.forEach((name, i) => {
    const { data, shape } = outputs[name];
    const writer = new NpyWriter(join(target, `got.${backend}.${i}.npy`), 'float32', shape);
    writer.append(data);
    writer.close();
  });
  runtime.dispose();
}

const failures = {};
const tf = await loadTf(vendor, backend);
const before = tf.memory().numTensors;
for (const name of names) {
  try {
    await runModel(tf, join(folder, name));
  } catch (error) {
    failures[name] = error.message;
  }
}
console.log(JSON.stringify({ failures, leaked: tf.memory().numTensors - before }));
