// From image files, canvases and video frames to 8-bit pixels, in a worker: steps 1 to 3 of
// docs/bundle.md, "Preprocessing".

/** A file that the browser cannot decode as an image, or one that is too large. */
export class DecodeError extends Error {
  constructor(message, { hint = '', cause } = {}) {
    super(message, { cause });
    this.name = 'DecodeError';
    this.hint = hint;
  }
}

const MAX_PIXELS = 100e6;
// As stored: no colour profile applied, alpha apart from the colours.
const OPTIONS = {
  colorSpaceConversion: 'none', premultiplyAlpha: 'none', imageOrientation: 'from-image',
};

function checkSize(width, height) {
  if (width * height <= MAX_PIXELS) return;
  const millions = Math.round((width * height) / 1e6);
  throw new DecodeError(
    `the image has ${millions} megapixels (${width} x ${height}); this page takes 100`,
    { hint: 'make it smaller first' },
  );
}

let canvas;

function pixelsOf(bitmap) {
  const { width, height } = bitmap;
  checkSize(width, height);
  canvas ??= new OffscreenCanvas(width, height);
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext('2d', { willReadFrequently: true });
  context.clearRect(0, 0, width, height);
  context.drawImage(bitmap, 0, 0);
  const { data } = context.getImageData(0, 0, width, height);
  // A large photo's canvas would otherwise stay in memory.
  if (width * height > 4e6) canvas = undefined;
  return { data, width, height, channels: 4 };
}

async function bitmapOf(blob) {
  try {
    return await createImageBitmap(blob, OPTIONS);
  } catch (cause) {
    const name = blob.name ? `${blob.name} is` : 'this is';
    throw new DecodeError(`${name} not an image that this browser can read`, {
      hint: 'JPEG, PNG, WebP and GIF work everywhere',
      cause,
    });
  }
}

/**
 * Decodes an image.
 *
 * @param {Blob|ImageBitmap|ImageData|Uint8Array} source Bytes are an image file's. A bitmap is
 *   closed.
 * @returns {Promise<{data: Uint8ClampedArray, width: number, height: number, channels: 4}>} RGBA,
 *   not premultiplied.
 */
export async function decode(source) {
  if (source instanceof ImageData) {
    checkSize(source.width, source.height);
    return { data: source.data, width: source.width, height: source.height, channels: 4 };
  }
  if (source instanceof Uint8Array) return decode(new Blob([source]));
  const bitmap = source instanceof Blob ? await bitmapOf(source) : source;
  try {
    return pixelsOf(bitmap);
  } finally {
    bitmap.close();
  }
}
