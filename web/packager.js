// Runs a bundle in a page of yours:
//
//     import { loadBundle } from './packager.js';
//     const model = await loadBundle('../');
//     const [{ label, score }] = await model.classify(imageOrCanvasOrVideoOrTensor);
//
// Loading and inference are in a worker; see example.html, packager.d.ts and docs/web.md.

import { BundleError, openBundle, sha256 } from './bundle.js';
import { autoOrder, candidatesOf, inspectBrowser, RUNTIMES, threadsHere } from './candidates.js';
import { Session } from './session.js';
import { memory, openStore } from './store.js';

export { BundleError } from './bundle.js';
export { WorkerError } from './session.js';

const BITMAP = {
  colorSpaceConversion: 'none', premultiplyAlpha: 'none', imageOrientation: 'from-image',
};
const NEEDED = ['Worker', 'OffscreenCanvas', 'createImageBitmap', 'WebAssembly'];
// Two runtimes that differ by less are equally fast.
const NOTICEABLE = 0.9;
// Threads that wait for one another cost a small model more than they give.
const SMALL_MS = 10;

/** A browser that lacks something, or a bundle that no runtime here can run. */
export class UnsupportedError extends Error {
  constructor(message, { hint = '', reasons = [] } = {}) {
    super(message);
    this.name = 'UnsupportedError';
    this.hint = hint;
    this.reasons = reasons;
  }
}

function checkBrowser() {
  const lacking = NEEDED.filter((name) => globalThis[name] === undefined);
  if (lacking.length > 0) {
    throw new UnsupportedError(`this browser has no ${lacking.join(', no ')}`, {
      hint: 'use a current Chrome, Edge, Firefox or Safari',
    });
  }
}

const isTensor = (value) => ArrayBuffer.isView(value) || Array.isArray(value?.shape);

// What a worker can be sent: files and pixels as they are, everything else as a bitmap.
async function sendable(source, input) {
  if (isTensor(source)) {
    return ArrayBuffer.isView(source) ? { data: source, shape: input.shape.slice(1) } : source;
  }
  if (source instanceof Blob || source instanceof ImageData) return source;
  if (source instanceof HTMLImageElement) await source.decode();
  return createImageBitmap(source, BITMAP);
}

/** A loaded bundle. */
class Model extends EventTarget {
  #bundle;
  #browser;
  #session;
  #candidate;
  #threads;
  #started;
  #key;
  #onProgress;
  #reasons = new Map();

  // `started` is a session that has been loading its library since before the bundle was known.
  constructor(bundle, browser, key, { started, onProgress }) {
    super();
    this.#bundle = bundle;
    this.#browser = browser;
    this.#key = key;
    this.#started = started;
    this.#onProgress = onProgress;
    this.candidates = candidatesOf(bundle.manifest, browser);
  }

  get manifest() { return this.#bundle.manifest; }

  /**
   * What runs the model: a candidate, what the runtime says of itself, its check, and the addresses
   * that were loaded for it.
   */
  get runtime() {
    const { described, check, loaded } = this.#session;
    return { ...this.#candidate, ...described, check, loaded };
  }

  /** Whether the candidates have not been measured on this machine yet. */
  get isUntuned() { return this.#remembered === undefined; }

  // What was the fastest at an earlier visit, and with how many threads.
  get #remembered() {
    const [id, threads] = memory.get(this.#key)?.split(' ') ?? [];
    return id === undefined ? undefined : { id, threads: Number(threads) || undefined };
  }

  /** Why candidates that were tried could not be used: texts by id. */
  get failures() { return Object.fromEntries(this.#reasons); }

  #newSession({ runtime }) {
    const started = this.#started;
    this.#started = undefined;
    if (started?.runtime === runtime) return started;
    started?.close();
    return new Session();
  }

  async #openSession(candidate, { threads: used, onLost, onProgress } = {}) {
    const { threads } = this.#browser;
    const { base, manifest } = this.#bundle;
    try {
      const session = this.#newSession(candidate);
      return await session.open({ base, manifest, candidate, threads, used }, { onProgress, onLost });
    } catch (error) {
      this.#reasons.set(candidate.id, error.message);
      throw error;
    }
  }

  #adopt(candidate, session, threads) {
    this.#session?.retire();
    this.#session = session;
    this.#candidate = candidate;
    this.#threads = threads;
    this.dispatchEvent(new CustomEvent('runtime', { detail: this.runtime }));
  }

  // A runtime that ends by itself is left out, and the next one takes over.
  async #replace(candidate, error) {
    if (candidate !== this.#candidate) return;
    this.#reasons.set(candidate.id, error.message);
    this.dispatchEvent(new CustomEvent('lost', { detail: error }));
    const others = autoOrder(this.candidates).filter(({ id }) => !this.#reasons.has(id));
    this.replacing = this.#openFirst(others);
    await this.replacing.catch((failure) => {
      this.dispatchEvent(new CustomEvent('lost', { detail: failure }));
    });
  }

  async #openFirst(candidates) {
    const known = this.#remembered;
    for (const { id } of candidates) {
      try {
        await this.use(id, id === known?.id ? known : {});
        return;
      } catch {
        // Its reason is kept, and the next one is tried.
      }
    }
    throw this.#nothingWorks();
  }

  #nothingWorks() {
    if (this.candidates.length === 0) {
      return new UnsupportedError('the bundle has no file that a browser can run', {
        hint: 'build it with a TF.js artifact: packager build MODEL --with-web',
      });
    }
    const reasons = this.candidates.map(
      ({ id, title, reason }) => `${title}: ${this.#reasons.get(id) ?? reason}`,
    );
    const damaged = reasons.find((text) => /is changed or damaged|cannot load/.test(text));
    return new UnsupportedError(damaged ?? `no runtime can run this bundle: ${reasons.join('; ')}`, {
      reasons, hint: damaged ? 'copy the bundle again, or build it again' : '',
    });
  }

  /**
   * Opens the first candidate that works, as `loadBundle` does.
   *
   * @param {string} runtime `auto`, a runtime or a candidate.
   * @returns {Promise<void>}
   */
  async start(runtime) {
    const order = autoOrder(this.candidates);
    if (runtime === 'auto') {
      const known = this.#remembered?.id;
      await this.#openFirst(order.toSorted((a, b) => (b.id === known) - (a.id === known)));
      return;
    }
    if (this.candidates.length === 0) throw this.#nothingWorks();
    const wanted = this.candidates.filter(({ id, runtime: name }) => [id, name].includes(runtime));
    if (wanted.length === 0) {
      const names = this.candidates.map(({ id }) => id).join(', ');
      throw new UnsupportedError(`there is no runtime ${runtime} for this bundle`, {
        hint: names && `it is auto or one of ${names}`,
      });
    }
    await this.use(wanted[0].id);
  }

  /** Switches to a candidate, named by its id; the one in use stays if it cannot be opened. */
  async use(id, { threads = this.#browser.threads } = {}) {
    const candidate = this.candidates.find((one) => one.id === id);
    if (candidate === undefined) throw new UnsupportedError(`there is no runtime ${id}`);
    if (!candidate.available) throw new UnsupportedError(`${candidate.title}: ${candidate.reason}`);
    const session = await this.#openSession(candidate, {
      threads,
      onProgress: this.#onProgress,
      onLost: (error) => this.#replace(candidate, error),
    });
    this.#adopt(candidate, session, threads);
  }

  async #timesOf(candidate, threads) {
    const { status, p50_ms } = await this.#examine(candidate, { runs: 20, threads });
    return status === 'passed' ? [{ id: candidate.id, p50_ms, threads }] : [];
  }

  /**
   * Measures every candidate that passes its checks, switches to the fastest and remembers it.
   *
   * @returns {Promise<{id: string, p50_ms: number, threads: number}[]>} The fastest first.
   */
  async chooseFastest() {
    const { threads } = this.#browser;
    const found = [];
    for (const candidate of this.candidates.filter(({ auto }) => auto)) {
      const times = await this.#timesOf(candidate, threads);
      const isSmall = threads > 1 && times[0]?.p50_ms < SMALL_MS;
      if (isSmall && candidate.runtime === 'litert-wasm') {
        times.push(...await this.#timesOf(candidate, 1));
      }
      found.push(...times.toSorted((a, b) => a.p50_ms - b.p50_ms).slice(0, 1));
    }
    found.sort((a, b) => a.p50_ms - b.p50_ms);
    const current = found.find(
      ({ id, threads: used }) => id === this.#candidate.id && used === this.#threads,
    );
    const best = found[0];
    const isBetter = current === undefined || best?.p50_ms < NOTICEABLE * current.p50_ms;
    if (best !== undefined && isBetter) await this.use(best.id, best);
    memory.set(this.#key, `${this.#candidate.id} ${this.#threads}`);
    memory.set(startKey(this.#bundle.base), this.#candidate.runtime);
    return found;
  }

  // One row of the self-test; without `runs` nothing is timed.
  async #examine(candidate, { runs = 0, threads }) {
    const { id, runtime, artifact } = candidate;
    const row = { id: artifact, runtime, candidate: id, title: candidate.title };
    if (!candidate.available) return { ...row, status: 'skipped', reason: candidate.reason };
    let session;
    try {
      session = await this.#openSession(candidate, { threads });
      const check = await session.call('check');
      const { times, ...measured } = runs > 0 ? await session.call('measure', [{ runs }]) : {};
      return { ...row, ...check, ...measured, runtime, described: session.described };
    } catch (error) {
      return { ...row, status: 'failed', samples: 0, reason: error.message };
    } finally {
      session?.close();
    }
  }

  /**
   * Runs all golden samples on each candidate, each in a worker of its own.
   *
   * @param {{runs?: number, onRow?: (row: object) => void}} options With `runs` it also measures.
   * @returns {Promise<object>} The document of docs/web.md, "Results as JSON".
   */
  async selfTest({ runs = 0, onRow = () => {} } = {}) {
    const rows = [];
    for (const candidate of this.candidates) {
      const row = await this.#examine(candidate, { runs });
      rows.push(row);
      onRow(row);
    }
    return resultsDocument(this.#bundle, this.#browser, rows);
  }

  /**
   * Runs the model on one sample.
   *
   * @param {object} inputs By input name: an image, or `{data, shape}`.
   * @param {{top?: number}} options
   * @returns {Promise<object>} `outputs`, `answers`, `ms`, `totalMs`, `view`.
   */
  async predict(inputs, { top = 5 } = {}) {
    await this.replacing;
    const sent = {};
    for (const input of this.manifest.inputs) {
      if (inputs[input.name] === undefined) {
        throw new UnsupportedError(`the input ${input.name} is missing`);
      }
      sent[input.name] = await sendable(inputs[input.name], input);
    }
    const moved = Object.values(sent).filter((value) => value instanceof ImageBitmap);
    return this.#session.call('predict', [sent, { top }], moved);
  }

  /**
   * Answers labels for one image or tensor, for models with one input.
   *
   * @returns {Promise<{label: string, score: number, class: number}[]>} The best first.
   */
  async classify(source, options) {
    return (await this.predict(this.inputsOf(source), options)).answers;
  }

  /** The same source under the name of the model's only input. */
  inputsOf(source) {
    const { inputs } = this.manifest;
    if (inputs.length !== 1) {
      const names = inputs.map(({ name }) => name).join(', ');
      throw new UnsupportedError(`the model has ${inputs.length} inputs: ${names}`, {
        hint: 'use model.predict({NAME: value, …})',
      });
    }
    return { [inputs[0].name]: source };
  }

  /** The golden samples; `file(path)` reads their inputs. */
  async samples() {
    return this.manifest.golden === undefined ? [] : (await this.#bundle.golden()).samples;
  }

  /** A file of the bundle, checked. */
  file(path) { return this.#bundle.file(path); }

  /** Bytes and tensors that the runtime holds. */
  memory() { return this.#session.call('memory'); }

  /** Ends the worker and frees everything. */
  dispose() {
    this.#candidate = undefined;
    this.#session?.close();
  }
}

async function resultsDocument(bundle, browser, rows) {
  const { name, version } = bundle.manifest;
  return {
    schema: { name: 'packager-browser-results', version: 1 },
    runner: 'browser',
    created: new Date().toISOString(),
    bundle: { name, version, manifest_sha256: await sha256(bundle.manifestBytes) },
    machine: {
      system: navigator.platform, browser: navigator.userAgent,
      cpus: navigator.hardwareConcurrency ?? 1, cross_origin_isolated: crossOriginIsolated,
    },
    runtime: { name: 'packager/web', threads: browser.threads },
    artifacts: rows,
  };
}

function crossOriginHint(base, error) {
  const isForeign = new URL(base).origin !== location.origin;
  if (isForeign && error instanceof BundleError && error.cause instanceof TypeError) {
    error.hint = `${new URL(base).origin} must allow this page: it has to send the header ` +
      `Access-Control-Allow-Origin: ${location.origin} (CORS)`;
  }
  return error;
}

const startKey = (base) => `packager:start:${base}`;

// Loads a library while the manifest is on its way: the one of the last visit, or what is tried
// first. Where another one is needed, this one is dropped.
function startSession(base, runtime) {
  const wanted = runtime === 'auto' ? memory.get(startKey(base)) : runtime.split(':')[0];
  const found = RUNTIMES.find(({ id }) => id === wanted);
  if (found === undefined && runtime !== 'auto') return undefined;
  return new Session({ runtime: found ?? RUNTIMES[0], threads: threadsHere() });
}

/**
 * Loads a bundle.
 *
 * @param {string} address The bundle's folder, the one with manifest.json.
 * @param {{runtime?: string, tune?: boolean, onProgress?: Function}} options `runtime`: `auto`, or
 *   the id of a runtime (`tfjs-wasm`) or candidate (`litert-wasm:tflite/float32`). `tune`: with
 *   `auto`, measure in the background and switch to the fastest; `model.tuning` resolves then.
 *   `onProgress({stage, loaded, total})` in bytes.
 * @returns {Promise<Model>}
 */
export async function loadBundle(address, options = {}) {
  const { runtime = 'auto', tune = true, onProgress = () => {} } = options;
  checkBrowser();
  const base = new URL(address.endsWith('/') ? address : `${address}/`, location.href).href;
  const started = startSession(base, runtime);
  const store = await openStore();
  const bundle = await openBundle(base, { store }).catch((error) => {
    started?.close();
    throw crossOriginHint(base, error);
  });
  // It holds the page up for as long as a graphics process needs to start; the worker goes on.
  const browser = await inspectBrowser();
  const { checksum, name, version, created } = bundle.manifest;
  const identity = checksum ?? [name, version, created].join('/');
  const key = `packager:fastest:${identity}:${browser.threads}`;
  const model = new Model(bundle, browser, key, { started, onProgress });
  await model.start(runtime);
  if (runtime === 'auto' && tune && model.isUntuned) model.tuning = model.chooseFastest();
  return model;
}
