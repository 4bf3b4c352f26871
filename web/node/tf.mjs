// Loads the vendored TF.js in Node. It is one script for all module systems; as plain CommonJS it
// would be read as an ES module here, because web/package.json says so.

import { existsSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import vm from 'node:vm';

const require = createRequire(import.meta.url);

/** TF.js is not in the vendor folder. */
export class VendorMissing extends Error {
  constructor(path) {
    super(`${path} is missing: run make vendor`);
    this.name = 'VendorMissing';
  }
}

function runScript(path, modules) {
  if (!existsSync(path)) throw new VendorMissing(path);
  const parameters = ['exports', 'require', 'module', '__filename', '__dirname'];
  const module = { exports: {} };
  const body = vm.compileFunction(readFileSync(path, 'utf8'), parameters, { filename: path });
  body(module.exports, (name) => modules[name] ?? require(name), module, path, dirname(path));
  return module.exports;
}

// Emscripten's start-up code turns every unhandled rejection into a throw of its own.
function withoutNewListeners(action) {
  const events = ['uncaughtException', 'unhandledRejection'];
  const before = new Map(events.map((event) => [event, process.listeners(event)]));
  return action().finally(() => {
    for (const event of events) {
      for (const listener of process.listeners(event)) {
        if (!before.get(event).includes(listener)) process.off(event, listener);
      }
    }
  });
}

// TF.js keeps its engine in the global object, so its scripts run once per process.
const loaded = new Map();

function runOnce(path, modules) {
  if (!loaded.has(path)) loaded.set(path, runScript(path, modules));
  return loaded.get(path);
}

/** The version of TF.js in the vendor folder. */
export function tfVersion(vendor) {
  return runOnce(join(vendor, 'tf.min.js'), {}).version.tfjs;
}

/**
 * Loads TF.js and makes a back end current.
 *
 * @param {string} vendor The vendor folder.
 * @param {'cpu'|'wasm'} backend
 * @returns {Promise<object>} The TF.js namespace.
 */
export async function loadTf(vendor, backend) {
  const tf = runOnce(join(vendor, 'tf.min.js'), {});
  // Else TF.js prints an advertisement for its native add-on at the first use.
  tf.enableProdMode();
  if (backend === 'wasm') {
    const modules = { '@tensorflow/tfjs-core': tf };
    const wasm = runOnce(join(vendor, 'tf-backend-wasm.min.js'), modules);
    wasm.setWasmPaths(join(vendor, '/'));
    await withoutNewListeners(() => tf.setBackend('wasm'));
  } else {
    await tf.setBackend(backend);
  }
  return tf;
}
