// Runs TFLite artifacts of batch 1 with LiteRT.js; the interface is that of tfjs.js.

import { RuntimeError } from './error.js';

const ARRAYS = { float32: Float32Array, int32: Int32Array, uint8: Uint8Array };

// By name, never by position; a lone tensor needs no name.
function bound(details, wanted, side) {
  const byName = new Map(details.map((one) => [one.name, one]));
  if (details.length === wanted.length && wanted.every(({ name }) => byName.has(name))) {
    return wanted.map(({ name }) => ({ name, detail: byName.get(name) }));
  }
  if (details.length === 1 && wanted.length === 1) {
    return [{ name: wanted[0].name, detail: details[0] }];
  }
  throw new RuntimeError(
    `the file has the ${side} ${[...byName.keys()].join(', ')}; its card names ` +
      wanted.map(({ name }) => name).join(', '),
  );
}

class LiteRtRuntime {
  #litert;
  #model;
  #card;
  #inputs;
  #outputs;
  #accelerator;
  #threads;

  constructor(litert, model, card, { accelerator, threads }) {
    this.#litert = litert;
    this.#model = model;
    this.#card = card;
    this.#accelerator = accelerator;
    this.#threads = threads;
    this.#inputs = bound(model.getInputDetails(), card.inputs, 'inputs');
    this.#outputs = bound(model.getOutputDetails(), card.outputs, 'outputs');
  }

  #tensor({ name, detail }, given) {
    if (given === undefined) throw new RuntimeError(`the input ${name} is missing`);
    const { data, shape } = given;
    const expected = [...detail.shape];
    if (shape.length !== expected.length || expected.some((size, i) => size !== shape[i])) {
      throw new RuntimeError(`input ${name}: expected the shape [${expected}], received [${shape}]`);
    }
    const Values = ARRAYS[detail.dtype];
    if (Values === undefined) {
      throw new RuntimeError(`input ${name}: LiteRT.js cannot take ${detail.dtype}`);
    }
    const values = data instanceof Values ? data : Values.from(data, Number);
    return new this.#litert.Tensor(values, shape);
  }

  /**
   * Runs a batch of one.
   *
   * @param {Object<string, {data: ArrayLike<number>, shape: number[]}>} inputs By input name.
   * @returns {Promise<Object<string, {data: Float32Array, shape: number[]}>>} By output name.
   */
  async run(inputs) {
    const feed = {};
    let results = {};
    try {
      for (const one of this.#inputs) feed[one.detail.name] = this.#tensor(one, inputs[one.name]);
      results = await this.#model.run(feed);
      const outputs = {};
      for (const { name, detail } of this.#outputs) {
        const found = results[detail.name];
        const onCpu = this.#accelerator === 'wasm' ? found : await found.moveTo('wasm');
        results[detail.name] = onCpu;
        const data = Float32Array.from(onCpu.toTypedArray());
        outputs[name] = { data, shape: [...detail.shape] };
      }
      return outputs;
    } finally {
      for (const tensor of [...Object.values(feed), ...Object.values(results)]) tensor.delete();
    }
  }

  /** What runs the model: for reports and for people. */
  describe() {
    return {
      name: '@litertjs/core', version: this.#litert.VERSION, backend: this.#accelerator,
      threads: this.#threads, format: 'tflite',
      inputs: this.#card.inputs.map(({ name }) => name),
      outputs: this.#card.outputs.map(({ name }) => name),
    };
  }

  /** Bytes of the WebAssembly heap, which never shrinks. */
  memoryBytes() {
    return this.#litert.getGlobalLiteRt().liteRtWasm.HEAPU8.length;
  }

  /** Frees the model. The runtime cannot be used afterwards. */
  dispose() {
    this.#model.delete();
  }
}

/**
 * Loads a model.
 *
 * @param {object} litert The namespace of LiteRT.js, loaded, with its `VERSION`.
 * @param {Uint8Array} bytes The .tflite file.
 * @param {{inputs: object[], outputs: object[]}} card The manifest or the card.
 * @param {{backend: 'wasm'|'webgpu', threads: number}} options
 */
export async function load(litert, bytes, card, { backend: accelerator, threads }) {
  let model;
  try {
    model = await litert.loadAndCompile(bytes, { accelerator, cpuOptions: { numThreads: threads } });
  } catch (cause) {
    throw new RuntimeError(`LiteRT.js cannot load the model: ${cause.message}`, { cause });
  }
  return new LiteRtRuntime(litert, model, card, { accelerator, threads });
}
