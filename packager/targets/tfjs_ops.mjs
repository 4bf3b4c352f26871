// Prints which TensorFlow operators the vendored TF.js implements and which of their attributes it
// reads, as JSON. After a new pin in web/package-lock.json:
//
//     make vendor && node packager/targets/tfjs_ops.mjs > packager/targets/tfjs_ops.json
//
// tf.min.js holds its operator tables as array literals, and no call lists them. Each name is also
// given to TF.js itself, which must know it.

import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import vm from 'node:vm';

const HERE = dirname(fileURLToPath(import.meta.url));
const VENDOR = process.argv[2] ?? join(HERE, '..', '..', 'web', 'vendor');
const START = '[{tfOpName:';

// The array literal that begins at `start`; the tables hold no bracket inside a string.
function literal(text, start) {
  let depth = 0;
  for (let i = start; i < text.length; i += 1) {
    if (text[i] === '[') depth += 1;
    if (text[i] === ']') depth -= 1;
    if (depth === 0) return text.slice(start, i + 1);
  }
  throw new Error(`the table at ${start} does not end`);
}

function tables(text) {
  const found = [];
  for (let at = text.indexOf(START); at >= 0; at = text.indexOf(START, at + 1)) {
    found.push(...vm.runInNewContext(literal(text, at)));
  }
  return found;
}

function loadTf(path) {
  const module = { exports: {} };
  const run = vm.runInThisContext(`(function (module, exports, require) {${readFileSync(path)}\n})`);
  run(module, module.exports, createRequire(import.meta.url));
  return module.exports;
}

async function known(tf, names) {
  const handler = tf.io.fromMemory({
    modelTopology: { node: names.map((op) => ({ name: op, op })), versions: {} },
    weightSpecs: [], weightData: new ArrayBuffer(0),
  });
  const { nodes } = (await tf.loadGraphModel(handler)).executor.graph;
  return names.filter((name) => nodes[name].category !== undefined);
}

const path = join(VENDOR, 'tf.min.js');
const mappers = tables(readFileSync(path, 'utf8'));
const tf = loadTf(path);
const names = mappers.map(({ tfOpName }) => tfOpName).sort();
const missing = names.length - (await known(tf, names)).length;
if (missing !== 0) throw new Error(`TF.js does not know ${missing} of the operators found`);
const attributes = Object.fromEntries(mappers.map(({ tfOpName, attrs = [] }) => [
  tfOpName,
  attrs.filter(({ notSupported }) => !notSupported)
    .flatMap(({ tfName, tfDeprecatedName: old }) => (old ? [tfName, old] : [tfName])).sort(),
]));
const lines = names.map((name) => `  ${JSON.stringify(name)}: ${JSON.stringify(attributes[name])}`);
console.log(`{"tfjs": "${tf.version.tfjs}", "operators": {\n${lines.join(',\n')}\n}}`);
