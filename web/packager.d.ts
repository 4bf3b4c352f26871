// Types of packager.js: a bundle of packager in a page. See docs/web.md.

/** Values with the model's shape; the batch axis may be left out. */
export interface Tensor {
  data: ArrayLike<number>;
  shape: number[];
}

/** What becomes an image input. A Blob or File is decoded as its bytes say. */
export type ImageSource =
  | Blob
  | HTMLImageElement
  | HTMLVideoElement
  | HTMLCanvasElement
  | OffscreenCanvas
  | ImageBitmap
  | ImageData
  | VideoFrame;

export type Source = ImageSource | Tensor | ArrayBufferView;

export interface Answer {
  /** Of the manifest, or the class number as a text. */
  label: string;
  class: number;
  /** A probability, 0 to 1. */
  score: number;
  /** Multilabel only: the score reaches the threshold. */
  present?: boolean;
}

export interface Prediction {
  /** By output name, the batch axis included. */
  outputs: Record<string, { data: Float32Array; shape: number[] }>;
  /** The best first; empty for regression and for tasks without labels. */
  answers: Answer[];
  /** Milliseconds in the model. */
  ms: number;
  /** Milliseconds with decoding and preprocessing. */
  totalMs: number;
  /** The image as the model gets it, before scale and offset. */
  view?: ImageData;
}

export interface Candidate {
  /** Such as `litert-wasm:tflite/float32`. */
  id: string;
  /** `tfjs-wasm`, `tfjs-webgl`, `tfjs-webgpu`, `tfjs-cpu`, `litert-wasm` or `litert-webgpu`. */
  runtime: string;
  library: 'tfjs' | 'litert';
  backend: 'wasm' | 'webgl' | 'webgpu' | 'cpu';
  artifact: string;
  title: string;
  available: boolean;
  /** Whether `auto` considers it. */
  auto: boolean;
  /** Why it is not available, or not considered. */
  reason: string;
}

export interface Check {
  id: string;
  status: 'passed' | 'failed' | 'skipped' | 'recorded';
  samples: number;
  max_abs_diff?: number;
  worst_sample?: string;
  reason: string;
}

export interface Runtime extends Candidate {
  name: string;
  version: string;
  check: Check;
  threads?: number;
  /** Addresses that were loaded for it. */
  loaded: string[];
}

export interface Progress {
  stage: 'model' | 'check';
  /** Bytes. */
  loaded: number;
  total: number;
}

export interface GoldenSample {
  id: string;
  label?: number;
  /** Paths of files in the bundle, by input name. */
  inputs: Record<string, string>;
}

/** The manifest of docs/bundle.md. */
export type Manifest = Record<string, any>;

/**
 * Events: `runtime` when another runtime is in use; `lost` when one has ended by itself and the
 * next takes over (`detail` is the error).
 */
export class Model extends EventTarget {
  readonly manifest: Manifest;
  readonly candidates: Candidate[];
  readonly runtime: Runtime;
  /** Why candidates that were tried could not be used, by id. */
  readonly failures: Record<string, string>;
  /** Whether the candidates have not been measured on this machine yet. */
  readonly isUntuned: boolean;
  /** With `auto`: resolves when the fastest is in use. */
  tuning?: Promise<{ id: string; p50_ms: number; threads: number }[]>;

  classify(source: Source, options?: { top?: number }): Promise<Answer[]>;
  predict(inputs: Record<string, Source>, options?: { top?: number }): Promise<Prediction>;
  /** The same source under the name of the model's only input. */
  inputsOf(source: Source): Record<string, Source>;
  use(id: string, options?: { threads?: number }): Promise<void>;
  chooseFastest(): Promise<{ id: string; p50_ms: number; threads: number }[]>;
  /** The document of docs/web.md, "Results as JSON". */
  selfTest(options?: { runs?: number; onRow?: (row: Check & { candidate: string }) => void }): Promise<object>;
  samples(): Promise<GoldenSample[]>;
  /** A file of the bundle, its hash checked. */
  file(path: string): Promise<Uint8Array>;
  memory(): Promise<{ bytes: number; tensors?: number }>;
  dispose(): void;
}

export interface LoadOptions {
  /** `auto` (the default), the id of a runtime, or the id of a candidate. */
  runtime?: string;
  /** With `auto`: measure in the background and switch to the fastest. Default true. */
  tune?: boolean;
  onProgress?: (progress: Progress) => void;
}

/** Opens the bundle at an address, the folder that holds manifest.json. */
export function loadBundle(address: string, options?: LoadOptions): Promise<Model>;

/** A bundle that is missing, damaged, too new or incomplete; `path` names the file. */
export class BundleError extends Error {
  path: string;
  hint: string;
}

/** A browser that lacks something, or a bundle that no runtime here can run. */
export class UnsupportedError extends Error {
  hint: string;
  reasons: string[];
}

/** An error inside the worker, or (`lost`) its end. */
export class WorkerError extends Error {
  path: string;
  hint: string;
  lost: boolean;
}
