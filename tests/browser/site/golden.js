// Runs a TF.js artifact on its golden samples with the shipped modules, in this page.

import { openBundle, whyNot } from '/web/bundle.js';
import { preprocess } from '/web/preprocess.js';
import { load } from '/web/runtimes/tfjs.js';

// 8-bit RGBA pixels of a PNG file, as the file holds them.
async function decode(bytes) {
  const options = { premultiplyAlpha: 'none', colorSpaceConversion: 'none' };
  const bitmap = await createImageBitmap(new Blob([bytes], { type: 'image/png' }), options);
  const { width, height } = bitmap;
  const context = new OffscreenCanvas(width, height).getContext('2d');
  context.drawImage(bitmap, 0, 0);
  return { data: context.getImageData(0, 0, width, height).data, width, height, channels: 4 };
}

async function feedOf(bundle, sample) {
  const feed = {};
  for (const input of bundle.manifest.inputs) {
    const pixels = await decode(await bundle.file(sample.inputs[input.name]));
    const { data, shape } = preprocess(pixels, input);
    feed[input.name] = { data, shape: [1, ...shape] };
  }
  return feed;
}

/** Returns what ran and, by sample and output, the flat values. */
window.runGolden = async (base, id, backend) => {
  window.tf.wasm.setWasmPaths('/web/vendor/');
  const bundle = await openBundle(new URL(base, location).href);
  const { samples } = await bundle.golden();
  const runtime = await load(window.tf, await bundle.tfjsFiles(id), bundle.manifest, { backend });
  const values = {};
  for (const sample of samples) {
    const outputs = await runtime.run(await feedOf(bundle, sample));
    values[sample.id] = Object.fromEntries(
      Object.entries(outputs).map(([name, { data }]) => [name, [...data]]),
    );
  }
  const described = runtime.describe();
  runtime.dispose();
  const refusal = whyNot(bundle.artifact(id), described.name, described.version);
  return { described, refusal, values, tensors: window.tf.memory().numTensors };
};

window.isReady = true;
