// Loads the vendored runtimes, in a classic worker: both need importScripts, which module workers
// have but refuse.

import { RuntimeError } from './runtimes/error.js';

const VENDOR = new URL('vendor/', import.meta.url).href;
const PACKAGES = { tfjs: '@tensorflow/tfjs', litert: '@litertjs/core' };
const TFJS_BACKENDS = { wasm: ['tf-backend-wasm.min.js'], webgpu: ['tf-backend-webgpu.min.js'] };

// Several at once: a browser fetches them side by side and runs them in this order.
function scripts(names) {
  try {
    self.importScripts(...names.map((name) => VENDOR + name));
  } catch (cause) {
    const paths = names.map((name) => `vendor/${name}`).join(', ');
    throw new RuntimeError(`cannot load the runtime ${paths}: ${cause.message}`, { cause });
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

async function loadTfjs({ backend, threads }) {
  scripts(['tf.min.js', ...(TFJS_BACKENDS[backend] ?? [])]);
  const { tf } = self;
  tf.enableProdMode();
  if (backend === 'wasm') {
    tf.wasm.setWasmPaths(VENDOR);
    // It takes half of the cores: below four, its file for threads only takes longer to start.
    if (threads < 4) tf.env().set('WASM_HAS_MULTITHREAD_SUPPORT', false);
    tf.wasm.setThreadsCount(threads);
  }
  return tf;
}

// Its namespace and its version.
async function loadLitert({ backend, threads }) {
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

const LOADERS = { tfjs: loadTfjs, litert: loadLitert };
let loading;

/**
 * Loads the library of this worker; later calls answer the same.
 *
 * @param {{library: 'tfjs'|'litert', backend: string, threads: number}} runtime
 * @returns {Promise<object>} The namespace of TF.js with the back end's code, or that of LiteRT.js
 *   with its `VERSION` and the `threads` that it can use.
 */
export function loadLibrary(runtime) {
  loading ??= LOADERS[runtime.library](runtime);
  return loading;
}
