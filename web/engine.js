// One runtime with one artifact of a bundle, in a worker of its own: what it holds ends with the
// worker, and so do a load that never returns and a heap that only grows.

import { answer } from './answers.js';
import { Bundle, BundleError, whyNot } from './bundle.js';
import { decode } from './decode.js';
import { compare, readSample } from './golden.js';
import { preprocess } from './preprocess.js';
import { RuntimeError } from './runtimes/error.js';
import * as litertRuntime from './runtimes/litert.js';
import { load as loadTfjsModel } from './runtimes/tfjs.js';
import { openStore } from './store.js';
import { timed } from './timing.js';
import { loadLibrary, vendored } from './vendored.js';

// TF.js files name the versions that were seen to be right. LiteRT.js is in no such list: there all
// golden samples decide, at every load.
const LIBRARIES = {
  tfjs: {
    checked: 1,
    mayPass: ['passed', 'skipped', 'recorded'],
    async open(bundle, artifact, options) {
      const { name, version } = await vendored('tfjs');
      const refusal = whyNot(artifact, name, version);
      if (refusal !== '') throw new RuntimeError(refusal);
      const files = bundle.tfjsFiles(artifact.id);
      files.catch(() => {}); // awaited below
      const tf = await loadLibrary(options);
      return loadTfjsModel(tf, await files, bundle.manifest, options);
    },
  },
  litert: {
    checked: Infinity,
    mayPass: ['passed'],
    async open(bundle, artifact, options) {
      if (bundle.manifest.golden === undefined) {
        throw new RuntimeError('without golden samples LiteRT.js cannot be checked');
      }
      const file = bundle.file(artifact.path);
      file.catch(() => {}); // awaited below
      const litert = await loadLibrary(options);
      const threads = Math.min(options.used, litert.threads);
      return litertRuntime.load(litert, await file, bundle.manifest, { ...options, threads });
    },
  },
};

const median = (values) => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)];

function viewOf({ data, width, height, channels }, order) {
  const out = new Uint8ClampedArray(width * height * 4).fill(255);
  for (let i = 0; i < width * height; i += 1) {
    for (let c = 0; c < 3; c += 1) {
      const from = channels === 1 ? 0 : (order === 'bgr' ? 2 - c : c);
      out[4 * i + c] = data[i * channels + from];
    }
  }
  return new ImageData(out, width, height);
}

const isImage = (given) =>
  given instanceof Blob || given instanceof ImageBitmap || given instanceof ImageData;

/** An artifact that is loaded and checked. */
class Engine {
  #bundle;
  #artifact;
  #runtime;
  #times;

  constructor(bundle, artifact, runtime, loadMs) {
    this.#bundle = bundle;
    this.#artifact = artifact;
    this.#runtime = runtime;
    this.#times = { load_ms: loadMs };
  }

  async #timedRun(feed) {
    const start = performance.now();
    const outputs = await this.#runtime.run(feed);
    const ms = performance.now() - start;
    this.#times.first_ms ??= ms;
    return { outputs, ms };
  }

  async #feedOf(inputs) {
    const feed = {};
    let view;
    for (const input of this.#bundle.manifest.inputs) {
      const given = inputs[input.name];
      if (given === undefined) throw new RuntimeError(`the input ${input.name} is missing`);
      if (isImage(given)) {
        const { data, shape, planes } = preprocess(await decode(given), input);
        feed[input.name] = { data, shape: [1, ...shape] };
        view = viewOf(planes, input.image.channels);
      } else {
        const { data, shape } = given;
        const batched = shape.length === input.shape.length ? shape : [1, ...shape];
        feed[input.name] = { data, shape: batched };
      }
    }
    return { feed, view };
  }

  /**
   * Runs one sample.
   *
   * @param {Object<string, Blob|ImageBitmap|ImageData|{data, shape}>} inputs By input name.
   * @returns {Promise<{outputs, answers, ms, totalMs, view}>} `ms` of the model alone; `view` is
   *   the image as the model gets it, before scale and offset.
   */
  async predict(inputs, { top = 5 } = {}) {
    const start = performance.now();
    const { feed, view } = await this.#feedOf(inputs);
    const { outputs, ms } = await this.#timedRun(feed);
    const answers = answer(outputs, this.#bundle.manifest, top);
    return { outputs, answers, ms, totalMs: performance.now() - start, view };
  }

  /** Runs golden samples, `limit` at most, and compares them with the stored values. */
  async check({ limit = Infinity } = {}) {
    const { id } = this.#artifact;
    if (this.#bundle.manifest.golden === undefined) {
      return { id, status: 'skipped', samples: 0, reason: 'the bundle has no golden samples' };
    }
    const golden = await this.#bundle.golden();
    const samples = golden.samples.slice(0, limit);
    const bySample = {};
    for (const sample of samples) {
      const { outputs } = await this.#timedRun(await readSample(this.#bundle, sample, decode));
      bySample[sample.id] = Object.fromEntries(
        Object.entries(outputs).map(([name, { data }]) => [name, [...data]]),
      );
    }
    return compare(this.#bundle, id, { ...golden, samples }, bySample);
  }

  /** Times of repeated runs on the first golden sample, or on zeros; settings as in timing.js. */
  async measure({ warm_up = 3, runs = 30, seconds = 2 } = {}) {
    const feed = await this.#someFeed();
    const times = await timed(() => this.#timedRun(feed), { warm_up, runs, seconds });
    return {
      ...this.#times, p50_ms: median(times), runs: times.length, times,
      memory_bytes: this.#runtime.memoryBytes(),
    };
  }

  async #someFeed() {
    const { manifest } = this.#bundle;
    if (manifest.golden !== undefined) {
      const { samples } = await this.#bundle.golden();
      return readSample(this.#bundle, samples[0], decode);
    }
    return Object.fromEntries(manifest.inputs.map(({ name, shape }) => {
      const filled = shape.map((size) => size ?? 1);
      const data = new Float32Array(filled.reduce((product, size) => product * size, 1));
      return [name, { data, shape: filled }];
    }));
  }

  describe() {
    const described = this.#runtime.describe();
    const isTfjsWasm = described.name === '@tensorflow/tfjs' && described.backend === 'wasm';
    const threads = isTfjsWasm ? self.tf.wasm.getThreadsCount() : described.threads;
    return { ...described, threads, artifact: this.#artifact.id };
  }

  memory() {
    return { bytes: this.#runtime.memoryBytes(), tensors: self.tf?.memory().numTensors };
  }
}

// Bytes of an artifact's files: a TF.js model has a folder of its own.
function sizeOf({ files = {} }, artifact, library) {
  const prefix = artifact.path.slice(0, artifact.path.lastIndexOf('/') + 1);
  const isPart = (path) => (library === 'tfjs' ? path.startsWith(prefix) : path === artifact.path);
  return Object.entries(files).filter(([path]) => isPart(path))
    .reduce((sum, [, { bytes }]) => sum + bytes, 0);
}

/**
 * Loads an artifact and checks it on golden samples.
 *
 * @param {{base: string, manifest: object, candidate: object, threads: number, used?: number}} options
 *   `threads` that there may be, and how many of them LiteRT.js shall use; TF.js decides by itself.
 * @param {(progress: {stage: string, loaded: number, total: number}) => void} onProgress In bytes.
 * @returns {Promise<{engine: Engine, check: object}>}
 */
export async function open({ base, manifest, candidate, threads, used = threads }, onProgress) {
  const { library, backend } = candidate;
  let loaded = 0;
  let total = 0;
  const onBytes = (count) => {
    loaded = Math.min(total, loaded + count);
    onProgress({ stage: 'model', loaded, total });
  };
  const store = await openStore();
  const bundle = new Bundle(base, manifest, { fetch: (url) => fetch(url), store, onBytes });
  const artifact = bundle.artifact(candidate.artifact);
  total = sizeOf(manifest, artifact, library);
  const start = performance.now();
  const { open: openModel, checked, mayPass } = LIBRARIES[library];
  const runtime = await openModel(bundle, artifact, { library, backend, threads, used });
  watchContext(backend);
  const engine = new Engine(bundle, artifact, runtime, performance.now() - start);
  onProgress({ stage: 'check', loaded: total, total });
  const check = await engine.check({ limit: checked });
  if (!mayPass.includes(check.status)) {
    throw new BundleError(`${candidate.title} computes other numbers here: ${check.reason}`, {
      hint: 'another runtime is used', path: artifact.path,
    });
  }
  return { engine, check };
}

// A lost graphics context makes TF.js answer zeros.
function watchContext(backend) {
  if (backend !== 'webgl') return;
  const { canvas } = self.tf.backend().getGPGPUContext().gl;
  canvas.addEventListener('webglcontextlost', () => {
    self.postMessage({ lost: 'the browser took the graphics device away' });
  });
}
