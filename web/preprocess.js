// From decoded 8-bit pixels to a model's input: steps 3 to 7 of docs/bundle.md, "Preprocessing".
// Orientation and the reduction to 8 bits belong to whoever decodes the image.

import { METHODS, resize } from './resample.js';

const CHANNELS = { gray: 1, rgb: 3, bgr: 3 };
const FITS = ['stretch', 'crop', 'pad'];
const ARRAYS = {
  float32: Float32Array, uint8: Uint8Array, int8: Int8Array, uint16: Uint16Array,
  int16: Int16Array, int32: Int32Array,
};
const INTEGER_RANGES = {
  uint8: [0, 255], int8: [-128, 127], uint16: [0, 65535], int16: [-32768, 32767],
  int32: [-(2 ** 31), 2 ** 31 - 1],
};

/** An image or a declaration that cannot be processed. */
export class PreprocessError extends Error {
  constructor(message) {
    super(message);
    this.name = 'PreprocessError';
  }
}

function checkDeclaration(input) {
  const { image, name, dtype } = input;
  if (image === undefined || image === null) {
    throw new PreprocessError(`input ${name} declares no image; give it tensors (.npy)`);
  }
  const known = [
    ['channels', Object.keys(CHANNELS)], ['fit', FITS], ['resize', METHODS],
  ];
  for (const [key, values] of known) {
    if (!values.includes(image[key])) {
      throw new PreprocessError(
        `input ${name}: ${key} ${image[key]} is not known; it is one of ${values.join(', ')}`,
      );
    }
  }
  for (const key of ['scale', 'offset']) {
    if (![1, CHANNELS[image.channels]].includes(image[key]?.length)) {
      throw new PreprocessError(
        `input ${name}: ${key} needs one entry or one per channel, received [${image[key]}]`,
      );
    }
  }
  if (ARRAYS[dtype] === undefined) {
    throw new PreprocessError(`input ${name}: images cannot become ${dtype}`);
  }
}

// value * alpha / 255, rounded to nearest; exact for all 8-bit values.
function overBlack(value, alpha) {
  const product = value * alpha + 128;
  return (product + (product >> 8)) >> 8;
}

/**
 * Composites alpha over black and converts to the wanted channels.
 *
 * @param {{data: Uint8Array|Uint8ClampedArray, width: number, height: number,
 *   channels: number}} pixels Interleaved; 1 gray, 2 gray and alpha, 3 RGB, 4 RGBA (not
 *   premultiplied).
 * @param {'gray'|'rgb'|'bgr'} order
 * @returns Planes of 1 or 3 channels, uint8.
 */
export function toChannels(pixels, order) {
  const { data, width, height, channels } = pixels;
  const hasAlpha = channels === 2 || channels === 4;
  const isGray = channels <= 2;
  const wanted = CHANNELS[order];
  const out = new Uint8Array(width * height * wanted);
  for (let from = 0, to = 0; to < out.length; from += channels, to += wanted) {
    const alpha = hasAlpha ? data[from + channels - 1] : 255;
    const red = overBlack(data[from], alpha);
    const green = isGray ? red : overBlack(data[from + 1], alpha);
    const blue = isGray ? red : overBlack(data[from + 2], alpha);
    if (order === 'gray') {
      out[to] = (19595 * red + 38470 * green + 7471 * blue + 32768) >>> 16;
    } else {
      out[to] = order === 'rgb' ? red : blue;
      out[to + 1] = green;
      out[to + 2] = order === 'rgb' ? blue : red;
    }
  }
  return { data: out, width, height, channels: wanted };
}

// floor((2ab + c) / 2c): ab / c rounded to nearest in integers, at least 1.
function roundedRatio(a, b, c) {
  return Math.max(1, Math.floor((2 * a * b + c) / (2 * c)));
}

/** The largest centred box of w x h pixels with the aspect ratio of W x H. */
export function cropBox(w, h, W, H) {
  const wide = w * H >= h * W;
  const width = wide ? roundedRatio(h, W, H) : w;
  const height = wide ? h : roundedRatio(w, H, W);
  return {
    left: Math.floor((w - width) / 2), top: Math.floor((h - height) / 2), width, height,
  };
}

/** Where w x h pixels go on a canvas of W x H: the size that they take and their offset. */
export function padBox(w, h, W, H) {
  const wide = w * H >= h * W;
  const width = wide ? W : roundedRatio(w, H, h);
  const height = wide ? roundedRatio(h, W, w) : H;
  return {
    left: Math.floor((W - width) / 2), top: Math.floor((H - height) / 2), width, height,
  };
}

function crop({ data, width, channels }, box) {
  const out = new Uint8Array(box.width * box.height * channels);
  const length = box.width * channels;
  for (let y = 0; y < box.height; y += 1) {
    const from = ((box.top + y) * width + box.left) * channels;
    out.set(data.subarray(from, from + length), y * length);
  }
  return { data: out, width: box.width, height: box.height, channels };
}

function pad({ data, width, height, channels }, box, W, H, value) {
  const out = new data.constructor(W * H * channels).fill(value);
  const length = width * channels;
  for (let y = 0; y < height; y += 1) {
    const to = ((box.top + y) * W + box.left) * channels;
    out.set(data.subarray(y * length, (y + 1) * length), to);
  }
  return { data: out, width: W, height: H, channels };
}

/**
 * Fits planes to the declared size.
 *
 * @param planes uint8 planes as `toChannels` gives them.
 * @param {{width, height, fit, resize, pad_value}} image The manifest's `inputs[].image`.
 * @returns Planes of exactly width x height; float32 for `tf:bilinear` unless nothing was resized.
 */
export function fitPlanes(planes, image) {
  const { width: W, height: H, fit, resize: method, pad_value: padValue = 0 } = image;
  if (fit === 'stretch') return resize(planes, W, H, method);
  if (fit === 'crop') {
    return resize(crop(planes, cropBox(planes.width, planes.height, W, H)), W, H, method);
  }
  const box = padBox(planes.width, planes.height, W, H);
  return pad(resize(planes, box.width, box.height, method), box, W, H, padValue);
}

// Half away from zero, which Math.round is not below zero. floor(|x| + 0.5) would be wrong for the
// largest number below 0.5.
function roundAway(x) {
  const size = Math.abs(x);
  const whole = Math.floor(size);
  return Math.sign(x) * (size - whole >= 0.5 ? whole + 1 : whole);
}

function normalise({ data, channels }, image, dtype) {
  const pick = (values, c) => (values.length === 1 ? values[0] : values[c]);
  const out = new ARRAYS[dtype](data.length);
  const range = INTEGER_RANGES[dtype];
  for (let i = 0; i < data.length; i += 1) {
    const c = i % channels;
    // In double precision; storing into a Float32Array is the one rounding.
    const value = data[i] * pick(image.scale, c) + pick(image.offset, c);
    out[i] = range ? Math.min(range[1], Math.max(range[0], roundAway(value))) : value;
  }
  return out;
}

// A free dimension (null) takes the size that is left over; undefined when it cannot.
function shapeOf(declared, length) {
  const known = declared.filter((size) => size !== null);
  const product = known.reduce((total, size) => total * size, 1);
  const free = declared.length - known.length;
  const left = free === 1 ? length / product : 1;
  if (free > 1 || !Number.isInteger(left) || product * left !== length) return undefined;
  return declared.map((size) => size ?? left);
}

/**
 * Makes one sample of a model's input.
 *
 * @param pixels As for `toChannels`.
 * @param {object} input An entry of the manifest's `inputs`.
 * @returns {{data: TypedArray, shape: number[], dtype: string, planes: object}} Without the batch
 *   axis; `planes` is the fitted image before scale and offset.
 */
export function preprocess(pixels, input) {
  checkDeclaration(input);
  const { image, dtype } = input;
  const planes = fitPlanes(toChannels(pixels, image.channels), image);
  const data = normalise(planes, image, dtype);
  const declared = input.shape.slice(1);
  const shape = shapeOf(declared, data.length);
  if (shape === undefined) {
    const wanted = declared.map((size) => size ?? '?').join(' x ');
    throw new PreprocessError(
      `input ${input.name} takes ${wanted} values, but the declared image gives ` +
        `${image.height} x ${image.width} x ${planes.channels}`,
    );
  }
  return { data, shape, dtype, planes };
}
