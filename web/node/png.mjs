// Decodes the PNG files that bundles hold: 8 bits per channel, not interlaced; gray, gray with
// alpha, RGB, RGBA or palette. Format: PNG specification (third edition), W3C 2025.

import { inflateSync } from 'node:zlib';

/** A PNG file that is damaged or of a kind that is not decoded here. */
export class PngError extends Error {
  constructor(message) {
    super(message);
    this.name = 'PngError';
  }
}

const SIGNATURE = [0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a];
// Pillow's limit, which the Python runners have.
const MAX_PIXELS = 89_478_485;
const COLOUR_CHANNELS = { 0: 1, 2: 3, 3: 1, 4: 2, 6: 4 };
const PALETTE = 3;

const CRC_TABLE = Uint32Array.from({ length: 256 }, (_, index) => {
  let value = index;
  for (let bit = 0; bit < 8; bit += 1) value = (value >>> 1) ^ (value & 1 ? 0xedb88320 : 0);
  return value;
});

function crc32(bytes) {
  let crc = 0xffffffff;
  for (const byte of bytes) crc = (crc >>> 8) ^ CRC_TABLE[(crc ^ byte) & 255];
  return ~crc >>> 0;
}

function* chunks(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let offset = SIGNATURE.length;
  while (offset + 12 <= bytes.length) {
    const length = view.getUint32(offset);
    const end = offset + 8 + length;
    if (end + 4 > bytes.length) throw new PngError('the file is cut off');
    const type = String.fromCharCode(...bytes.subarray(offset + 4, offset + 8));
    if (crc32(bytes.subarray(offset + 4, end)) !== view.getUint32(end)) {
      throw new PngError(`the chunk ${type} is damaged`);
    }
    yield { type, data: bytes.subarray(offset + 8, end) };
    if (type === 'IEND') return;
    offset = end + 4;
  }
  throw new PngError('the file is cut off');
}

function parseHeader(data) {
  if (data?.length !== 13) throw new PngError('the header is missing or damaged');
  const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
  const header = {
    width: view.getUint32(0), height: view.getUint32(4), depth: data[8], colour: data[9],
    interlace: data[12],
  };
  if (header.depth !== 8) throw new PngError(`${header.depth} bits per channel; 8 are decoded`);
  if (header.interlace !== 0) throw new PngError('interlaced files are not decoded');
  if (COLOUR_CHANNELS[header.colour] === undefined) throw new PngError('unknown colour type');
  const pixels = header.width * header.height;
  if (pixels === 0 || pixels > MAX_PIXELS) {
    throw new PngError(`${header.width} x ${header.height} pixels; 1 to ${MAX_PIXELS} are decoded`);
  }
  return { ...header, samples: COLOUR_CHANNELS[header.colour] };
}

// A small file can hold gigabytes of zeros, so no more is unpacked than the header declares.
function inflate(pieces, { width, height, samples }) {
  const length = (width * samples + 1) * height;
  let raw;
  try {
    raw = inflateSync(Buffer.concat(pieces), { maxOutputLength: length });
  } catch (error) {
    throw new PngError(`the pixel data cannot be unpacked to ${length} bytes: ${error.message}`);
  }
  if (raw.length !== length) throw new PngError('the pixel data has a wrong length');
  return raw;
}

function paeth(left, up, corner) {
  const guess = left + up - corner;
  const [toLeft, toUp, toCorner] = [left, up, corner].map((value) => Math.abs(guess - value));
  if (toLeft <= toUp && toLeft <= toCorner) return left;
  return toUp <= toCorner ? up : corner;
}

const PREDICTORS = [
  () => 0,
  (left) => left,
  (left, up) => up,
  (left, up) => (left + up) >> 1,
  paeth,
];

function unfilter(raw, { width, height, samples }) {
  const stride = width * samples;
  const out = new Uint8Array(stride * height);
  for (let y = 0; y < height; y += 1) {
    const predict = PREDICTORS[raw[y * (stride + 1)]];
    if (predict === undefined) throw new PngError('unknown row filter');
    const from = y * (stride + 1) + 1;
    const to = y * stride;
    for (let x = 0; x < stride; x += 1) {
      const left = x >= samples ? out[to + x - samples] : 0;
      const up = y > 0 ? out[to + x - stride] : 0;
      const corner = x >= samples && y > 0 ? out[to + x - stride - samples] : 0;
      out[to + x] = raw[from + x] + predict(left, up, corner);
    }
  }
  return out;
}

function applyPalette(indices, palette, transparency) {
  if (palette === undefined) throw new PngError('the palette is missing');
  const channels = transparency === undefined ? 3 : 4;
  const out = new Uint8Array(indices.length * channels);
  indices.forEach((index, i) => {
    if (index * 3 + 2 >= palette.length) throw new PngError('a colour is not in the palette');
    out.set(palette.subarray(index * 3, index * 3 + 3), i * channels);
    if (channels === 4) out[i * 4 + 3] = transparency[index] ?? 255;
  });
  return { data: out, channels };
}

// One colour of a gray or RGB image can be declared transparent, as 16-bit samples.
function applyColourKey(data, samples, transparency) {
  const key = Array.from({ length: samples }, (_, c) => transparency[c * 2 + 1]);
  const count = data.length / samples;
  const out = new Uint8Array(count * (samples + 1));
  for (let i = 0; i < count; i += 1) {
    const pixel = data.subarray(i * samples, (i + 1) * samples);
    out.set(pixel, i * (samples + 1));
    out[i * (samples + 1) + samples] = pixel.every((value, c) => value === key[c]) ? 0 : 255;
  }
  return { data: out, channels: samples + 1 };
}

/**
 * Decodes a file.
 *
 * @param {Uint8Array} bytes
 * @returns {{data: Uint8Array, width: number, height: number, channels: 1|2|3|4}} Interleaved;
 *   alpha is not premultiplied.
 */
export function decodePng(bytes) {
  if (!SIGNATURE.every((byte, i) => bytes[i] === byte)) throw new PngError('not a PNG file');
  const found = new Map();
  const pieces = [];
  for (const { type, data } of chunks(bytes)) {
    if (type === 'IDAT') pieces.push(data);
    else found.set(type, data);
  }
  const header = parseHeader(found.get('IHDR'));
  const { width, height, colour, samples } = header;
  const data = unfilter(inflate(pieces, header), header);
  const transparency = found.get('tRNS');
  if (colour === PALETTE) {
    return { width, height, ...applyPalette(data, found.get('PLTE'), transparency) };
  }
  if (transparency !== undefined && (colour === 0 || colour === 2)) {
    return { width, height, ...applyColourKey(data, samples, transparency) };
  }
  return { width, height, data, channels: samples };
}
