// Loads the vendored runtimes, in a classic worker: both need importScripts, which module workers
// have but refuse.

import { RuntimeError } from './runtimes/tfjs.js';

const VENDOR = new URL('vendor/', import.meta.url).href;
const PACKAGES = { tfjs: '@tensorflow/tfjs', litert: '@litertjs/core' };
const TFJS_BACKENDS = { wasm: ['tf-backend-wasm.min.js'], webgpu: ['tf-backend-webgpu.min.js'] };

function script(name) {
  try {
    self.importScripts(VENDOR + name);
  } catch (cause) {
    throw new RuntimeError(`cannot load the runtime vendor/${name}: ${cause.message}`, { cause });
  }
}

/**
 * Which package a library is, and its version.
 *
 * @param {'tfjs'|'litert'} library
 * @returns {Promise<{name: string, version: string}>}
 */
export async function vendored(library) {
  const response = await fetch(`${VENDOR}VERSIONS.json`);
  if (!response.ok) throw new RuntimeError('the runtimes are missing here: run make vendor');
  const { files } = await response.json();
  const name = PACKAGES[library];
  return { name, version: files.find((file) => file.package === name).version };
}

/** Loads TF.js with what a back end needs; returns its namespace. */
export async function loadTfjs({ backend, threads }) {
  ['tf.min.js', ...(TFJS_BACKENDS[backend] ?? [])].forEach(script);
  const { tf } = self;
  tf.enableProdMode();
  if (backend === 'wasm') {
    tf.wasm.setWasmPaths(VENDOR);
    tf.wasm.setThreadsCount(threads);
  }
  return tf;
}

/** Loads LiteRT.js; returns its namespace and its version. */
export async function loadLitert({ backend, threads }) {
  const litert = await import('./vendor/litert/core.js');
  const relaxed = await litert.supportsFeature('relaxedSimd');
  const withThreads = threads > 1 && relaxed;
  const { version } = await vendored('litert');
  const folder = `${VENDOR}litert/wasm/`;
  // In a worker its scripts look for their files, and for themselves, beside the worker's script.
  self.Module = {
    locateFile: (name) => folder + name,
    mainScriptUrlOrBlob: `${folder}litert_wasm_threaded_internal.js`,
    // It reports its start-up as errors.
    printErr: () => {},
  };
  const path = withThreads ? folder : `${folder}litert_wasm_compat_internal.js`;
  const start = () => litert.loadLiteRt(path, { threads: withThreads });
  try {
    await (backend === 'webgpu' ? start() : withoutGpu(start));
  } catch (cause) {
    throw new RuntimeError(`LiteRT.js cannot start: ${cause.message}`, { cause });
  }
  return { ...litert, VERSION: version, threads: withThreads ? threads : 1 };
}

// LiteRT.js takes a WebGPU device whatever it is for, and warns where there is none.
async function withoutGpu(action) {
  const { warn } = console;
  console.warn = () => {};
  Object.defineProperty(navigator, 'gpu', { value: undefined, configurable: true });
  try {
    return await action();
  } finally {
    console.warn = warn;
  }
}
