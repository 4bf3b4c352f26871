// Runs TF.js artifacts, layers and graph models alike, in browsers and in Node.
//
// Every runtime has this interface:
//
//     const runtime = await load(tf, source, card, {backend});
//     const outputs = await runtime.run({image: {data, shape, dtype}});   // batch axis included
//     runtime.describe(); runtime.dispose();

import '../packager-layers.js';
import { RuntimeError } from './error.js';

const { packagerLayers } = globalThis;

async function selectBackend(tf, backend) {
  if (backend === undefined) {
    await tf.ready();
    return;
  }
  // setBackend answers false, or throws, when a back end is absent or cannot start.
  const chosen = await tf.setBackend(backend).catch((cause) => {
    throw new RuntimeError(`the TF.js back end ${backend} cannot be used: ${cause.message}`, {
      cause,
    });
  });
  if (!chosen) throw new RuntimeError(`the TF.js back end ${backend} is not available here`);
  await tf.ready();
}

function isGraph(json) {
  return json.format === 'graph-model';
}

// What TF.js itself calls dynamic: only predictAsync runs it, and warns about everything else.
const DYNAMIC = new Set([
  'Enter', 'Exit', 'HashTable', 'HashTableV2', 'If', 'LookupTableFind', 'LookupTableFindV2',
  'LookupTableSize', 'LookupTableSizeV2', 'Merge', 'NextIteration', 'NonMaxSuppressionV2',
  'NonMaxSuppressionV3', 'NonMaxSuppressionV5', 'StatelessIf', 'StatelessWhile', 'Switch', 'Where',
  'While',
]);

// TF.js answers a promise for these, too.
const LISTS = /^(Empty)?Tensor(List|Array)/;

function isDynamic({ modelTopology }) {
  return modelTopology.node.some(({ op }) => DYNAMIC.has(op) || LISTS.test(op));
}

function weightSpecs(json) {
  return (json.weightsManifest ?? []).flatMap((group) => group.weights);
}

function joined(shards) {
  const bytes = new Uint8Array(shards.reduce((sum, shard) => sum + shard.byteLength, 0));
  let offset = 0;
  for (const shard of shards) {
    bytes.set(new Uint8Array(shard.buffer ?? shard, shard.byteOffset, shard.byteLength), offset);
    offset += shard.byteLength;
  }
  return bytes.buffer;
}

function handlerOf(tf, { json, weights }) {
  return tf.io.fromMemory({
    modelTopology: json.modelTopology,
    format: json.format,
    generatedBy: json.generatedBy,
    convertedBy: json.convertedBy,
    signature: json.signature,
    // Fills a graph model's look-up tables.
    modelInitializer: json.modelInitializer,
    initializerSignature: json.initializerSignature,
    userDefinedMetadata: json.userDefinedMetadata,
    weightSpecs: weightSpecs(json),
    weightData: joined(weights),
  });
}

async function openModel(tf, source) {
  const json = typeof source === 'string' ? await (await fetch(source)).json() : source.json;
  const target = typeof source === 'string' ? source : handlerOf(tf, source);
  const model = isGraph(json)
    ? await tf.loadGraphModel(target)
    : await tf.loadLayersModel(target);
  return { model, json };
}

function boundInputs(model, card) {
  if (model.inputs.length !== card.inputs.length) {
    throw new RuntimeError(
      `the model has ${model.inputs.length} inputs, its card names ${card.inputs.length}`,
    );
  }
  // A graph model lists its placeholders in no promised order, but names them.
  const byName = new Map(model.inputs.map((tensor) => [tensor.name.split(':')[0], tensor]));
  const named = card.inputs.every(({ name }) => byName.has(name));
  return card.inputs.map(({ name }, i) => ({
    name, tensor: named ? byName.get(name) : model.inputs[i],
  }));
}

function valuesFor(dtype, data) {
  if (dtype === 'float32') {
    return data instanceof Float32Array ? data : Float32Array.from(data, Number);
  }
  if (dtype === 'string') return data;
  if (dtype === 'bool') return Uint8Array.from(data, (value) => (value ? 1 : 0));
  return data instanceof Int32Array ? data : Int32Array.from(data, Number);
}

function feedOf(tf, bindings, inputs) {
  return bindings.map(({ name, tensor }) => {
    const given = inputs[name];
    if (given === undefined) throw new RuntimeError(`the input ${name} is missing`);
    const { data, shape } = given;
    if (shape.length !== tensor.shape.length ||
        tensor.shape.some((size, i) => size !== null && size !== -1 && size !== shape[i])) {
      throw new RuntimeError(
        `input ${name}: expected the shape [${tensor.shape}], received [${shape}]`,
      );
    }
    return tf.tensor(valuesFor(tensor.dtype, data), shape, tensor.dtype);
  });
}

function withoutScores(tf, layer) {
  const linear = tf.layers.activation({ activation: 'linear' });
  if (layer.getClassName() === 'Softmax') {
    layer.call = (inputs) => tf.clone(Array.isArray(inputs) ? inputs[0] : inputs);
  } else if (layer.settings !== undefined) {
    layer.settings.activation = 'linear';
  } else {
    layer.activation = linear.activation;
  }
}

class TfjsRuntime {
  #tf;
  #model;
  #card;
  #graph;
  #dynamic;
  #bindings;

  constructor(tf, model, json, card) {
    this.#tf = tf;
    this.#model = model;
    this.#card = card;
    this.#graph = isGraph(json);
    this.#dynamic = this.#graph && isDynamic(json);
    this.#bindings = boundInputs(model, card);
  }

  async #predict(feed) {
    if (!this.#graph) {
      const result = this.#model.predict(feed);
      return Array.isArray(result) ? result : [result];
    }
    const named = Object.fromEntries(this.#bindings.map(({ tensor }, i) => [tensor.name, feed[i]]));
    const result = this.#dynamic
      ? await this.#model.predictAsync(named) : this.#model.predict(named);
    if (result instanceof this.#tf.Tensor) return [result];
    if (Array.isArray(result)) return result;
    return this.#card.outputs.map(({ name }) => result[name]);
  }

  /**
   * Runs one batch.
   *
   * @param {Object<string, {data: ArrayLike<number>, shape: number[]}>} inputs By input name.
   * @returns {Promise<Object<string, {data: Float32Array, shape: number[]}>>} By output name.
   */
  async run(inputs) {
    const feed = feedOf(this.#tf, this.#bindings, inputs);
    let results = [];
    try {
      results = await this.#predict(feed);
      if (results.length !== this.#card.outputs.length) {
        throw new RuntimeError(
          `the model has ${results.length} outputs, its card names ${this.#card.outputs.length}`,
        );
      }
      const values = await Promise.all(results.map((tensor) => tensor.data()));
      return Object.fromEntries(this.#card.outputs.map(({ name }, i) => [
        name, { data: Float32Array.from(values[i]), shape: results[i].shape },
      ]));
    } finally {
      // predict() may hand back an input itself, so a tensor can stand in both lists.
      for (const tensor of new Set([...feed, ...results])) tensor.dispose();
    }
  }

  /**
   * Makes a layers model answer what inner layers give at their first call, to find where its
   * numbers begin to differ from another runtime's.
   *
   * @param {string[]} layers Names in model.json; they become the names of the outputs.
   * @param {{logits?: boolean}} options Without the softmax or sigmoid of these layers.
   */
  watch(layers, { logits = false } = {}) {
    const found = layers.map((name) => this.#model.getLayer(name));
    if (logits) found.forEach((layer) => withoutScores(this.#tf, layer));
    const outputs = found.map((layer) => layer.inboundNodes[0].outputTensors[0]);
    this.#model = this.#tf.model({ inputs: this.#model.inputs, outputs });
    this.#card = { ...this.#card, outputs: layers.map((name) => ({ name })) };
  }

  /** What runs the model: for reports and for people. */
  describe() {
    return {
      name: '@tensorflow/tfjs',
      version: this.#tf.version?.tfjs ?? this.#tf.version_core,
      backend: this.#tf.getBackend(),
      format: this.#graph ? 'graph' : 'layers',
      inputs: this.#card.inputs.map(({ name }) => name),
      outputs: this.#card.outputs.map(({ name }) => name),
    };
  }

  /** Bytes of the WebAssembly heap (which never shrinks), of textures, or of tensors. */
  memoryBytes() {
    const { numBytes, numBytesInGPU } = this.#tf.memory();
    return this.#tf.backend().wasm?.HEAPU8?.length ?? numBytesInGPU ?? numBytes;
  }

  /** Frees the weights. The runtime cannot be used afterwards. */
  dispose() {
    const variables = this.#graph ? [] : this.#model.weights.map((weight) => weight.val);
    this.#model.dispose();
    // TF.js counts the calls of a shared layer, but releases it only once.
    for (const variable of variables) if (!variable.isDisposed) variable.dispose();
  }
}

/**
 * Loads a model.
 *
 * A layers model whose node indices are wrong makes TF.js loop for ever; run this where it can
 * be stopped.
 *
 * @param {object} tf The TF.js namespace.
 * @param {string|{json: object, weights: Uint8Array[]}} source The address of model.json, or what
 *   `Bundle.tfjsFiles` gives.
 * @param {{inputs: object[], outputs: object[]}} card The manifest or the card: `inputs` and
 *   `outputs` in the model's order. By default the card inside model.json.
 * @param {{backend?: string}} options `cpu`, `wasm`, `webgl` or `webgpu`; else TF.js chooses.
 */
export async function load(tf, source, card, { backend } = {}) {
  await selectBackend(tf, backend);
  packagerLayers.register(tf);
  let opened;
  try {
    opened = await openModel(tf, source);
  } catch (cause) {
    throw new RuntimeError(`TF.js cannot load the model: ${cause.message}`, { cause });
  }
  const { model, json } = opened;
  const names = card ?? json.userDefinedMetadata?.packager;
  if (names === undefined) {
    model.dispose();
    throw new RuntimeError('model.json holds no card (userDefinedMetadata.packager)');
  }
  return new TfjsRuntime(tf, model, json, names);
}
