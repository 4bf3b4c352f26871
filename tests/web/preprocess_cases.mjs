// Runs web/preprocess.js over cases: cases.json in the given folder lists
// {pixels, width, height, channels, input, output}; pixels and output are raw files.

import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

import { preprocess } from '../../web/preprocess.js';

const folder = process.argv[2];
const cases = JSON.parse(readFileSync(join(folder, 'cases.json'), 'utf8'));
for (const { pixels, width, height, channels, input, output } of cases) {
  const data = readFileSync(join(folder, pixels));
  const result = preprocess({ data, width, height, channels }, input);
  writeFileSync(join(folder, output), new Uint8Array(result.data.buffer));
}
console.log(JSON.stringify({ count: cases.length }));
