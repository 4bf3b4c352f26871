// Where inputs come from: samples of the bundle, files, the pad, the camera.

import { parseNpy } from '../npy.js';
import * as camera from './camera.js';
import { $, clearNotice, make, notify, paint } from './dom.js';
import * as pad from './pad.js';

const TINY = 96; // pixels: shown as they are
const DRAWABLE = 128; // the largest gray image that is worth drawing for
const PREVIEW = 1024; // pixels of a shown photo

let context; // {model, predictor, addRow}
let current = 'image';
let last; // the inputs that were shown last, of a sample or a file

function showPicture(bitmap) {
  const canvas = $('shown');
  const isTiny = Math.max(bitmap.width, bitmap.height) <= TINY;
  canvas.className = isTiny ? 'tiny' : 'large';
  canvas.hidden = false;
  $('shown-text').hidden = true;
  paint(canvas, bitmap);
}

function showText(text) {
  $('shown').hidden = true;
  $('shown-text').textContent = text;
  $('shown-text').hidden = false;
}

// A photo is decoded twice: in full in the worker, and small for the page.
async function preview(blob) {
  const bitmap = await createImageBitmap(blob, { imageOrientation: 'from-image' });
  if (Math.max(bitmap.width, bitmap.height) <= PREVIEW) return bitmap;
  const scale = PREVIEW / Math.max(bitmap.width, bitmap.height);
  const small = await createImageBitmap(bitmap, {
    resizeWidth: Math.max(1, Math.round(bitmap.width * scale)),
    resizeHeight: Math.max(1, Math.round(bitmap.height * scale)),
    resizeQuality: 'medium',
  });
  bitmap.close();
  return small;
}

async function showFile(blob) {
  const bitmap = await preview(blob).catch(() => undefined);
  if (bitmap === undefined) return showText('this picture cannot be shown');
  showPicture(bitmap);
  bitmap.close();
}

async function tensorOf(file) {
  const { data, shape } = parseNpy(new Uint8Array(await file.arrayBuffer()));
  return { data, shape };
}

const isNpy = ({ name = '' }) => name.endsWith('.npy');

async function predictFile(file) {
  const source = isNpy(file) ? await tensorOf(file) : file;
  if (isNpy(file)) showText(`${file.name}\n${source.shape.join(' × ')}`);
  last = context.model.inputsOf(source);
  const result = await context.predictor.now(last);
  if (!isNpy(file)) await showFile(file);
  return result;
}

async function takeFiles(files) {
  if (files.length === 0) return;
  select('image');
  clearNotice();
  press(undefined);
  for (const file of files) {
    try {
      const result = await predictFile(file);
      if (files.length > 1) context.addRow(file.name, result);
    } catch (error) {
      notify(error);
      if (files.length > 1) context.addRow(file.name, undefined, error);
    }
  }
}

function press(button) {
  for (const one of $('samples').querySelectorAll('button')) {
    one.setAttribute('aria-pressed', String(one === button));
  }
}

async function inputsOfSample(sample) {
  const inputs = {};
  for (const [name, path] of Object.entries(sample.inputs)) {
    const bytes = await context.model.file(path);
    const { data, shape } = path.endsWith('.npy') ? parseNpy(bytes) : {};
    inputs[name] = data === undefined ? new Blob([bytes], { type: 'image/png' }) : { data, shape };
  }
  return inputs;
}

async function showSample(sample, button) {
  select('image');
  clearNotice();
  press(button);
  try {
    const inputs = await inputsOfSample(sample);
    last = inputs;
    const image = Object.values(inputs).find((value) => value instanceof Blob);
    if (image !== undefined) await showFile(image);
    else showText(Object.entries(inputs).map(([name, { shape }]) => `${name}: ${shape.join(' × ')}`).join('\n'));
    await context.predictor.now(inputs);
  } catch (error) {
    notify(error);
  }
}

const labelText = (sample) => {
  const { labels = [] } = context.model.manifest;
  return sample.label === undefined ? '' : ` (${labels[sample.label] ?? sample.label})`;
};

async function thumbnail(sample) {
  const path = Object.values(sample.inputs).find((name) => name.endsWith('.png'));
  if (path === undefined) return make('span', {}, sample.id);
  const url = URL.createObjectURL(new Blob([await context.model.file(path)], { type: 'image/png' }));
  const image = make('img', { alt: '', src: url });
  image.onload = () => {
    if (image.naturalWidth <= TINY) image.className = 'tiny';
    URL.revokeObjectURL(url);
  };
  return image;
}

function showButtons(samples) {
  $('samples-title').hidden = samples.length === 0;
  const buttons = samples.map((sample, i) => {
    const name = `Sample ${i + 1}${labelText(sample)}`;
    const button = make('button', { type: 'button', 'aria-label': name, 'aria-pressed': 'false', title: name });
    button.addEventListener('click', () => showSample(sample, button));
    return button;
  });
  $('samples').replaceChildren(...buttons.map((button) => make('li', {}, button)));
  return buttons;
}

// Light ink on dark paper, or the other way round: what most of the samples have.
async function isDark(samples) {
  const canvas = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
  const levels = [];
  for (const { inputs } of samples.slice(0, 8)) {
    const path = Object.values(inputs).find((name) => name.endsWith('.png'));
    if (path === undefined) continue;
    const options = { resizeWidth: 1, resizeHeight: 1, resizeQuality: 'high' };
    const blob = new Blob([await context.model.file(path)], { type: 'image/png' });
    canvas.drawImage(await createImageBitmap(blob, options), 0, 0);
    levels.push(canvas.getImageData(0, 0, 1, 1).data[0]);
  }
  return levels.length === 0 || levels.filter((level) => level < 128).length * 2 >= levels.length;
}

/** Makes a source the current one. */
function select(source) {
  if (current === 'camera' && source !== 'camera') camera.stop();
  current = source;
  $('stage').dataset.source = source;
  document.querySelector(`input[name="source"][value="${source}"]`).checked = true;
  for (const action of document.querySelectorAll('.action')) {
    action.classList.toggle('on', action.dataset.for === source);
  }
  $('label').setAttribute('aria-live', source === 'camera' ? 'off' : 'polite');
}

async function toggleCamera() {
  if (camera.isRunning()) return camera.stop();
  clearNotice();
  press(undefined);
  const { model, predictor } = context;
  try {
    await camera.start(model.manifest.inputs[0].image, async (video) => {
      await predictor.now(model.inputsOf(video)).catch((error) => {
        // A video that is not in view may have no picture to give.
        if (error.name === 'InvalidStateError') return;
        camera.stop();
        notify(error);
      });
    });
  } catch (error) {
    camera.stop();
    notify(error);
  }
}

function listenForFiles() {
  $('file').addEventListener('change', async ({ target }) => {
    const files = [...target.files];
    target.value = '';
    await takeFiles(files);
  });
  const { documentElement: page } = document;
  page.addEventListener('dragover', (event) => {
    event.preventDefault();
    page.classList.add('dropping');
  });
  page.addEventListener('dragleave', (event) => {
    if (event.relatedTarget === null) page.classList.remove('dropping');
  });
  page.addEventListener('drop', (event) => {
    event.preventDefault();
    page.classList.remove('dropping');
    takeFiles([...event.dataTransfer.files]);
  });
  page.addEventListener('paste', ({ clipboardData }) => takeFiles([...clipboardData.files]));
}

function listenForSources() {
  for (const radio of document.querySelectorAll('input[name="source"]')) {
    radio.addEventListener('change', () => {
      select(radio.value);
      if (radio.value === 'camera') toggleCamera();
    });
  }
  $('camera-toggle').addEventListener('click', toggleCamera);
  $('camera-turn').addEventListener('click', () => {
    camera.turn();
    camera.stop();
    toggleCamera();
  });
}

/** Answers the shown sample or file again, so that the times are those of the runtime in use. */
export async function again(times) {
  for (let i = 0; i < times && last !== undefined && current === 'image'; i += 1) {
    await context.predictor.now(last);
  }
}

/**
 * Makes all inputs work and shows the first sample.
 *
 * @param {object} model From `loadBundle`.
 * @param {{now: Function, latest: Function}} predictor
 * @param {Function} addRow
 */
export async function start(model, predictor, addRow) {
  context = { model, predictor, addRow };
  const { inputs } = model.manifest;
  const image = inputs.length === 1 ? inputs[0].image : undefined;
  const isSmall = image?.channels === 'gray' && Math.max(image.width, image.height) <= DRAWABLE;
  const samples = await model.samples();
  const buttons = showButtons(samples);
  $('tab-camera').hidden = !image || !camera.isSupported();
  $('tab-draw').hidden = !isSmall;
  select('image');
  listenForFiles();
  listenForSources();
  if (samples.length > 0) await showSample(samples[0], buttons[0]);
  else showText(image ? 'choose an image' : 'choose a .npy file');
  // The rest of the samples' files can wait for the first answer.
  await Promise.all(samples.map(async (one, i) => buttons[i].append(await thumbnail(one))));
  if (isSmall) {
    pad.start(await isDark(samples), (drawn) => {
      press(undefined);
      predictor.latest(model.inputsOf(drawn));
    });
  }
}
