// Reads a bundle (docs/bundle.md) and checks the sha256 of everything that it loads. Works in
// browsers and in Node: whatever differs is injected as `fetch`.

import { parseNpy } from './npy.js';

const SCHEMA = 1;
const TFJS_KINDS = ['tfjs-layers', 'tfjs-graph'];

/** A bundle that is missing, damaged, too new or incomplete. `path` names the file. */
export class BundleError extends Error {
  constructor(message, { path = '', hint = '', cause } = {}) {
    super(message, { cause });
    this.name = 'BundleError';
    this.path = path;
    this.hint = hint;
  }
}

// The body piece by piece where the caller counts bytes; Node's stand-in for fetch has no stream.
async function bodyOf(response, onBytes) {
  if (onBytes === undefined || !response.body) {
    return new Uint8Array(await response.arrayBuffer());
  }
  const pieces = [];
  let length = 0;
  for (const reader = response.body.getReader(); ;) {
    const { done, value } = await reader.read();
    if (done) break;
    pieces.push(value);
    length += value.length;
    onBytes(value.length);
  }
  const bytes = new Uint8Array(length);
  let offset = 0;
  for (const piece of pieces) {
    bytes.set(piece, offset);
    offset += piece.length;
  }
  return bytes;
}

async function download(fetchFile, url, path, onBytes) {
  let response;
  try {
    response = await fetchFile(url);
  } catch (cause) {
    throw new BundleError(`cannot load ${path}: ${cause.message}`, {
      path,
      hint: 'another origin must allow this page by CORS headers; offline, reload once online',
      cause,
    });
  }
  if (!response.ok) {
    throw new BundleError(`cannot load ${path}: the server answered ${response.status}`, {
      path,
      hint: 'check that the address is a bundle, the folder that holds manifest.json',
    });
  }
  try {
    return await bodyOf(response, onBytes);
  } catch (cause) {
    const hint = 'the connection broke off; try again';
    throw new BundleError(`cannot load ${path}: ${cause.message}`, { path, hint, cause });
  }
}

function parseJson(bytes, path) {
  try {
    return JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(bytes));
  } catch (cause) {
    throw new BundleError(`${path} is not valid JSON: ${cause.message}`, { path, cause });
  }
}

function checkManifest(manifest) {
  const path = 'manifest.json';
  if (!Number.isInteger(manifest?.schema)) {
    throw new BundleError('manifest.json has no schema number; this is not a bundle', { path });
  }
  if (manifest.schema > SCHEMA) {
    throw new BundleError(
      `manifest.json has schema ${manifest.schema}; this reader knows ${SCHEMA}`,
      { path, hint: 'use the web/ folder of the packager that made the bundle' },
    );
  }
  for (const key of ['inputs', 'outputs', 'artifacts']) {
    if (!Array.isArray(manifest[key])) {
      throw new BundleError(`manifest.json has no list "${key}"`, { path });
    }
  }
}

/** Whether TF.js runs this entry of the manifest's `artifacts`. */
export function isTfjs({ runtime }) {
  return TFJS_KINDS.includes(runtime.kind);
}

// "4.22.0-rc1" as [4, 22, 0].
function release(version) {
  return (/^\d+(\.\d+)*/.exec(version)?.[0] ?? '').split('.').map(Number);
}

function isOlder(version, oldest) {
  const [have, want] = [release(version), release(oldest)];
  for (let i = 0; i < Math.max(have.length, want.length); i += 1) {
    const [a, b] = [have[i] ?? 0, want[i] ?? 0];
    if (a !== b) return a < b;
  }
  return false;
}

/**
 * Why a package must not run an artifact: other packages and older versions may load the file and
 * compute something else.
 *
 * @param {object} artifact An entry of the manifest's `artifacts`.
 * @param {string} name The package, such as `@tensorflow/tfjs`.
 * @param {string} version Its version.
 * @returns {string} Empty when it may.
 */
export function whyNot({ id, runtime }, name, version) {
  const { min_version: allowed } = runtime;
  if (allowed === undefined) return '';
  if (!Object.hasOwn(allowed, name)) {
    return `${name} was not seen to give right numbers with ${id}`;
  }
  return isOlder(version, allowed[name])
    ? `${id} needs ${name} ${allowed[name]} or newer; this is ${version}` : '';
}

/**
 * Hashes bytes with WebCrypto.
 *
 * @param {Uint8Array} bytes
 * @returns {Promise<string>} SHA-256 in hexadecimal digits.
 */
export async function sha256(bytes) {
  if (globalThis.crypto?.subtle === undefined) {
    throw new BundleError('this page cannot check hashes: WebCrypto needs https or localhost', {
      hint: 'serve the page over https',
    });
  }
  const digest = new Uint8Array(await crypto.subtle.digest('SHA-256', bytes));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, '0')).join('');
}

// A bundle never refers to a file outside itself, whatever its manifest says.
function isInside(path) {
  return typeof path === 'string' && path !== '' && !path.startsWith('/') &&
    !/[\\:?#]/.test(path) && !path.split('/').includes('..');
}

/**
 * Reads a TF.js model.
 *
 * @param {string} path model.json, relative to what `read` reads from, with `/`.
 * @param {(path: string) => Promise<Uint8Array>} read
 * @returns {Promise<{json: object, weights: Uint8Array[]}>} model.json and its shards in order.
 */
export async function readTfjs(path, read) {
  const json = parseJson(await read(path), path);
  const folder = path.slice(0, path.lastIndexOf('/') + 1);
  const names = (json.weightsManifest ?? []).flatMap((group) => group.paths);
  for (const name of names) {
    if (!isInside(name)) throw new BundleError(`${name} lies outside the model's folder`, { path });
  }
  return { json, weights: await Promise.all(names.map((name) => read(folder + name))) };
}

/** An open bundle. `manifest` is the parsed manifest.json. */
export class Bundle {
  #base;
  #fetch;
  #store;
  #onBytes;

  /**
   * @param {string} base Address of the bundle's folder, with `/` at its end.
   * @param {object} manifest
   * @param {{fetch: Function, store?: {get: Function, put: Function}, onBytes?: Function,
   *   bytes?: Uint8Array}} options As for `openBundle`; `bytes` of manifest.json.
   */
  constructor(base, manifest, { fetch: fetchFile, store, onBytes, bytes }) {
    this.#base = base;
    this.#fetch = fetchFile;
    this.#store = store;
    this.#onBytes = onBytes;
    this.manifest = manifest;
    this.manifestBytes = bytes;
  }

  /** The address of the folder. */
  get base() {
    return this.#base;
  }

  /** The manifest's entry of an artifact. */
  artifact(id) {
    const found = this.manifest.artifacts.find((artifact) => artifact.id === id);
    if (found === undefined) {
      const known = this.manifest.artifacts.map((artifact) => artifact.id).join(', ');
      throw new BundleError(`the bundle has no artifact ${id}; it has: ${known}`);
    }
    return found;
  }

  /** The TF.js artifacts, in the manifest's order. */
  tfjsArtifacts() {
    return this.manifest.artifacts.filter(isTfjs);
  }

  /**
   * Loads one file.
   *
   * While a bundle is being built its manifest lists no files; then nothing can be compared.
   *
   * @param {string} path Relative to the bundle, with `/`.
   * @returns {Promise<Uint8Array>} Its bytes, whose sha256 is the manifest's.
   */
  async file(path) {
    if (!isInside(path)) throw new BundleError(`${path} lies outside the bundle`, { path });
    const { files } = this.manifest;
    const recorded = files?.[path];
    if (files !== undefined && recorded === undefined) {
      throw new BundleError(`${path} is not listed in manifest.json`, { path });
    }
    const url = this.#base + path.split('/').map(encodeURIComponent).join('/');
    if (recorded === undefined) return download(this.#fetch, url, path, this.#onBytes);
    const kept = await this.#store?.get(recorded.sha256);
    if (kept !== undefined && (await sha256(kept)) === recorded.sha256) return kept;
    const bytes = await download(this.#fetch, url, path, this.#onBytes);
    if ((await sha256(bytes)) !== recorded.sha256) {
      throw new BundleError(`${path} is changed or damaged: its sha256 is not the manifest's`, {
        path,
        hint: 'copy the bundle again, or build it again',
      });
    }
    await this.#store?.put(recorded.sha256, bytes);
    return bytes;
  }

  /** Loads and parses a JSON file. */
  async json(path) {
    return parseJson(await this.file(path), path);
  }

  /**
   * Loads a TF.js artifact.
   *
   * @returns {Promise<{json: object, weights: Uint8Array[]}>} model.json and its shards in order.
   */
  tfjsFiles(id) {
    return readTfjs(this.artifact(id).path, (path) => this.file(path));
  }

  /**
   * Loads the golden samples' list.
   *
   * @returns {Promise<{synthetic: boolean, samples: object[], tolerances: object}>} As in
   *   golden/samples.json; `values` resolves its stored arrays.
   */
  async golden() {
    const { golden } = this.manifest;
    if (golden === undefined) throw new BundleError('the bundle has no golden samples');
    const { synthetic, samples, tolerances = {} } = await this.json(golden.path);
    return { synthetic, samples, tolerances };
  }

  /**
   * Resolves stored values of a golden sample.
   *
   * @param {number[]|{npy: string, index: number}} stored A flat list, or a row of an array.
   * @returns {Promise<ArrayLike<number>>}
   */
  async values(stored) {
    if (Array.isArray(stored)) return stored;
    const { shape, data } = parseNpy(await this.file(stored.npy));
    const size = data.length / shape[0];
    return data.subarray(stored.index * size, (stored.index + 1) * size);
  }
}

/**
 * Opens a bundle.
 *
 * @param {string} base Address of the bundle's folder.
 * @param {{fetch?: Function, store?: object, onBytes?: Function}} options `fetch(url)` answers
 *   `{ok, status, arrayBuffer()}`; `store` keeps files by their sha256, see store.js;
 *   `onBytes(count)` hears of every piece that arrives.
 * @returns {Promise<Bundle>}
 */
export async function openBundle(base, options = {}) {
  const { fetch: fetchFile = (url) => fetch(url) } = options;
  const folder = base.endsWith('/') ? base : `${base}/`;
  const path = 'manifest.json';
  const bytes = await download(fetchFile, folder + path, path);
  const manifest = parseJson(bytes, path);
  checkManifest(manifest);
  return new Bundle(folder, manifest, { ...options, fetch: fetchFile, bytes });
}
