// Decodes the PNG and .npy files given as arguments and prints what they hold, or the error.

import { readFileSync } from 'node:fs';

import { decodePng } from '../../web/node/png.mjs';
import { parseNpy } from '../../web/npy.js';

function decode(path) {
  const bytes = new Uint8Array(readFileSync(path));
  if (path.endsWith('.png')) {
    const { width, height, channels, data } = decodePng(bytes);
    return { shape: [height, width, channels], values: [...data] };
  }
  const { dtype, shape, data } = parseNpy(bytes);
  return { dtype, shape, values: Array.from(data, Number) };
}

const answers = process.argv.slice(2).map((path) => {
  try {
    return decode(path);
  } catch (error) {
    return { error: `${error.name}: ${error.message}` };
  }
});
console.log(JSON.stringify(answers));
