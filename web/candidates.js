// What can run a bundle in this browser: each pair of a runtime and an artifact that fit.

import { isTfjs } from './bundle.js';

// In the order in which they are tried. LiteRT.js takes float and uint8 tensors only, and is slow
// with dynamic-range files. `auto` never changes the numbers: it takes float artifacts only.
export const RUNTIMES = [
  { id: 'tfjs-wasm', library: 'tfjs', backend: 'wasm', title: 'TF.js, WebAssembly' },
  { id: 'litert-wasm', library: 'litert', backend: 'wasm', title: 'LiteRT.js, WebAssembly' },
  { id: 'litert-webgpu', library: 'litert', backend: 'webgpu', title: 'LiteRT.js, WebGPU' },
  { id: 'tfjs-webgpu', library: 'tfjs', backend: 'webgpu', title: 'TF.js, WebGPU' },
  { id: 'tfjs-webgl', library: 'tfjs', backend: 'webgl', title: 'TF.js, WebGL' },
  { id: 'tfjs-cpu', library: 'tfjs', backend: 'cpu', title: 'TF.js, plain JavaScript' },
];
const LITERT_FILES = ['tflite/float32', 'tflite/int8_float_io'];
const SOFTWARE = /swiftshader|llvmpipe|software|basic render/i;

/** How many threads WebAssembly may use. */
export function threadsHere() {
  return globalThis.crossOriginIsolated ? Math.min(navigator.hardwareConcurrency ?? 1, 8) : 1;
}

/** What this browser has: reasons by back end, empty where it can be used. */
export async function inspectBrowser() {
  const noWasm = typeof WebAssembly === 'undefined' ? 'this browser has no WebAssembly' : '';
  const { reason: webgl, software } = inspectWebgl();
  return {
    reasons: { wasm: noWasm, webgl, webgpu: await whyNoWebgpu(), cpu: '' },
    softwareWebgl: software,
    threads: threadsHere(),
  };
}

function inspectWebgl() {
  const context = new OffscreenCanvas(1, 1).getContext('webgl2');
  if (context === null) return { reason: 'this browser has no WebGL 2', software: false };
  const info = context.getExtension('WEBGL_debug_renderer_info');
  const renderer = info ? context.getParameter(info.UNMASKED_RENDERER_WEBGL) : '';
  context.getExtension('WEBGL_lose_context')?.loseContext();
  return { reason: '', software: SOFTWARE.test(renderer) };
}

async function whyNoWebgpu() {
  if (navigator.gpu === undefined) return 'this browser has no WebGPU';
  const adapter = await navigator.gpu.requestAdapter().catch(() => null);
  return adapter === null ? 'this browser finds no WebGPU device' : '';
}

function artifactsFor(library, manifest) {
  const usable = manifest.artifacts.filter(({ gate }) => gate?.status !== 'failed');
  if (library === 'tfjs') return usable.filter(isTfjs);
  return LITERT_FILES.flatMap((id) => usable.filter((artifact) => artifact.id === id));
}

const isFloat = ({ quantization }) =>
  [undefined, null, 'float32'].includes(quantization?.mode ?? undefined);

/**
 * Lists what can run a bundle.
 *
 * @param {object} manifest
 * @param {object} browser From `inspectBrowser`.
 * @returns {{id: string, runtime: string, library: string, backend: string, artifact: string,
 *   title: string, available: boolean, auto: boolean, reason: string}[]} `reason` says why it is
 *   not available, or why *auto* leaves it out.
 */
export function candidatesOf(manifest, browser) {
  return RUNTIMES.flatMap((runtime) =>
    artifactsFor(runtime.library, manifest).map((artifact) => {
      const reason = browser.reasons[runtime.backend];
      const left = whyNotAuto(runtime, artifact, browser);
      const exact = isFloat(artifact);
      return {
        ...runtime, id: `${runtime.id}:${artifact.id}`, runtime: runtime.id, artifact: artifact.id,
        title: exact ? runtime.title : `${runtime.title}, ${artifact.quantization.mode}`,
        available: reason === '', auto: reason === '' && left === '', reason: reason || left,
      };
    }),
  );
}

function whyNotAuto({ backend }, artifact, { softwareWebgl }) {
  if (!isFloat(artifact)) return 'its numbers are rounded; choose it by hand';
  if (backend === 'cpu') return 'slow; used where nothing else works';
  if (backend === 'webgl' && softwareWebgl) return 'WebGL runs in software here';
  return '';
}

/** The candidates in the order in which `auto` tries them: those left out come last. */
export function autoOrder(candidates) {
  const available = candidates.filter((one) => one.available);
  return [...available.filter((one) => one.auto), ...available.filter((one) => !one.auto)];
}
