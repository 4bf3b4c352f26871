// Times a TF.js artifact in Node with the code that browsers get:
//
//     node bench.mjs JSON
//
// JSON: {model, inputs, samples, backend, vendor, warm_up, runs, seconds}. Standard output is one
// JSON document: {runtime, load_ms, times, peak_memory_bytes}; times in ms.

import { readFileSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';

import { readTfjs } from '../bundle.js';
import { load } from '../runtimes/tfjs.js';
import { timed } from '../timing.js';
import { inside } from './files.mjs';
import { NpyReader } from './npy.mjs';
import { loadTf } from './tf.mjs';

console.log = console.error;
console.info = console.error;

async function main(given) {
  const folder = dirname(given.model);
  const tf = await loadTf(given.vendor, given.backend);
  const source = await readTfjs(
    basename(given.model), async (path) => readFileSync(inside(folder, path)),
  );
  const card = source.json.userDefinedMetadata.packager;
  const started = performance.now();
  const runtime = await load(tf, source, card);
  const loadMs = performance.now() - started;
  const readers = card.inputs.map(({ name }) => [name, new NpyReader(join(given.inputs, `${name}.npy`))]);
  const feeds = Array.from({ length: given.samples }, (_, row) => Object.fromEntries(
    readers.map(([name, reader]) => [name, reader.rows(row, row + 1)]),
  ));
  readers.forEach(([, reader]) => reader.close());
  const times = await timed((number) => runtime.run(feeds[number % feeds.length]), given);
  return {
    runtime: runtime.describe(), load_ms: loadMs, times,
    peak_memory_bytes: process.resourceUsage().maxRSS * 1024,
  };
}

main(JSON.parse(process.argv[2])).then(
  (answer) => process.stdout.write(`${JSON.stringify(answer)}\n`),
  (error) => {
    console.error(`bench.mjs: ${error.message}`);
    process.exitCode = 1;
  },
);
