// A page without packager: TF.js, then packager-layers.js as a plain script.
//
//     node plain_page.mjs VENDOR SCRIPT STOCK_MODEL OWN_MODEL
//
// Prints what loading each model says before and after the script ran.

import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import vm from 'node:vm';

import { loadTf } from '../../web/node/tf.mjs';

const [vendor, script, stock, own] = process.argv.slice(2);
const tf = await loadTf(vendor, 'cpu');

async function tryToLoad(path) {
  const json = JSON.parse(readFileSync(path, 'utf8'));
  const shards = json.weightsManifest.flatMap(({ paths }) => paths);
  const bytes = Buffer.concat(shards.map((name) => readFileSync(join(dirname(path), name))));
  const weightData = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength);
  const weightSpecs = json.weightsManifest.flatMap(({ weights }) => weights);
  try {
    const model = await tf.loadLayersModel(tf.io.fromMemory({ ...json, weightSpecs, weightData }));
    return `loaded ${model.layers.length} layers`;
  } catch (error) {
    return error.message;
  }
}

const before = { stock: await tryToLoad(stock), own: await tryToLoad(own) };
globalThis.tf = tf;
vm.runInThisContext(readFileSync(script, 'utf8'), { filename: script });
const after = { stock: await tryToLoad(stock), own: await tryToLoad(own) };
console.log(JSON.stringify({ before, after }));
