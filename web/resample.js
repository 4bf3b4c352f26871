// Image resampling that gives the reference implementations' numbers.
//
// `pillow:*` reproduces Pillow's 8-bit resampling bit for bit: filter coefficients in double
// precision, normalised, rounded to fixed point with 22 fractional bits; a horizontal and then a
// vertical pass with 8-bit pixels in between. Since Pillow 13 one call of `resize` takes the
// vertical pass first where that is cheaper, which rounds differently; the order here is that of
// all versions before, and of one call per axis in any version. `tf:*` reproduces TensorFlow's
// ResizeBilinear and ResizeNearestNeighbor kernels with half-pixel centres, in single precision.
//
// A plane set is {data, width, height, channels}, pixels interleaved, rows from the top.

const PRECISION_BITS = 32 - 8 - 2;
const ONE = 2 ** PRECISION_BITS;
const HALF = 2 ** (PRECISION_BITS - 1);
const BICUBIC_A = -0.5;

function triangle(x) {
  const distance = Math.abs(x);
  return distance < 1 ? 1 - distance : 0;
}

function bicubic(x) {
  const d = Math.abs(x);
  if (d < 1) return ((BICUBIC_A + 2) * d - (BICUBIC_A + 3)) * d * d + 1;
  if (d < 2) return (((d - 5) * d + 8) * d - 4) * BICUBIC_A;
  return 0;
}

function sinc(x) {
  if (x === 0) return 1;
  const angle = x * Math.PI;
  return Math.sin(angle) / angle;
}

function lanczos(x) {
  return x >= -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0;
}

const FILTERS = {
  'pillow:bilinear': { weight: triangle, support: 1 },
  'pillow:bicubic': { weight: bicubic, support: 2 },
  'pillow:lanczos': { weight: lanczos, support: 3 },
};

export const METHODS = [
  'pillow:nearest', ...Object.keys(FILTERS), 'tf:bilinear', 'tf:nearest',
];

// One entry per output position: where its window starts and the fixed-point weights in it.
function fixedPointWindows(inSize, outSize, { weight, support }) {
  const scale = inSize / outSize;
  const stretch = Math.max(scale, 1);
  const reach = support * stretch;
  return Array.from({ length: outSize }, (_, position) => {
    const centre = (position + 0.5) * scale;
    const start = Math.max(0, Math.trunc(centre - reach + 0.5));
    const end = Math.min(inSize, Math.trunc(centre + reach + 0.5));
    const weights = [];
    let sum = 0;
    for (let i = start; i < end; i += 1) {
      const value = weight((i - centre + 0.5) * (1 / stretch));
      weights.push(value);
      sum += value;
    }
    const total = sum === 0 ? 1 : sum;
    return { start, weights: weights.map((value) => toFixedPoint(value / total)) };
  });
}

function toFixedPoint(value) {
  return Math.trunc((value < 0 ? -0.5 : 0.5) + value * ONE);
}

function clip8(sum) {
  return Math.min(255, Math.max(0, sum >> PRECISION_BITS));
}

function horizontalPass({ data, width, height, channels }, outWidth, filter) {
  const windows = fixedPointWindows(width, outWidth, filter);
  const out = new Uint8Array(outWidth * height * channels);
  let to = 0;
  for (let y = 0; y < height; y += 1) {
    for (const { start, weights } of windows) {
      const from = (y * width + start) * channels;
      for (let c = 0; c < channels; c += 1) {
        let sum = HALF;
        for (let i = 0; i < weights.length; i += 1) {
          sum += data[from + i * channels + c] * weights[i];
        }
        out[to] = clip8(sum);
        to += 1;
      }
    }
  }
  return { data: out, width: outWidth, height, channels };
}

function verticalPass({ data, width, height, channels }, outHeight, filter) {
  const windows = fixedPointWindows(height, outHeight, filter);
  const stride = width * channels;
  const out = new Uint8Array(stride * outHeight);
  let to = 0;
  for (const { start, weights } of windows) {
    for (let x = 0; x < stride; x += 1) {
      let sum = HALF;
      for (let i = 0; i < weights.length; i += 1) {
        sum += data[(start + i) * stride + x] * weights[i];
      }
      out[to] = clip8(sum);
      to += 1;
    }
  }
  return { data: out, width, height: outHeight, channels };
}

// Pillow adds the step again and again instead of multiplying, and so the positions drift.
function pillowNearestPositions(inSize, outSize) {
  const step = inSize / outSize;
  const positions = new Int32Array(outSize);
  let at = step * 0.5;
  for (let i = 0; i < outSize; i += 1) {
    positions[i] = at < inSize ? Math.trunc(at) : -1;
    at += step;
  }
  return positions;
}

function tfNearestPositions(inSize, outSize) {
  const scale = Math.fround(inSize / outSize);
  return Int32Array.from({ length: outSize }, (_, i) =>
    Math.min(inSize - 1, Math.floor(Math.fround((i + 0.5) * scale))));
}

function pick({ data, width, height, channels }, outWidth, outHeight, positionsOf) {
  const columns = positionsOf(width, outWidth);
  const rows = positionsOf(height, outHeight);
  const out = new Uint8Array(outWidth * outHeight * channels);
  let to = 0;
  for (const row of rows) {
    for (const column of columns) {
      const from = (row * width + column) * channels;
      for (let c = 0; c < channels; c += 1) {
        // Pillow leaves what falls behind the last pixel at zero.
        out[to] = row < 0 || column < 0 ? 0 : data[from + c];
        to += 1;
      }
    }
  }
  return { data: out, width: outWidth, height: outHeight, channels };
}

function tfBilinearPositions(inSize, outSize) {
  const scale = Math.fround(inSize / outSize);
  return Array.from({ length: outSize }, (_, i) => {
    const at = Math.fround(Math.fround((i + 0.5) * scale) - 0.5);
    const floor = Math.floor(at);
    return {
      lower: Math.max(0, floor),
      upper: Math.min(inSize - 1, Math.ceil(at)),
      share: Math.fround(at - floor),
    };
  });
}

const mix = (a, b, share) =>
  Math.fround(a + Math.fround(Math.fround(b - a) * share));

function tfBilinear({ data, width, height, channels }, outWidth, outHeight) {
  const columns = tfBilinearPositions(width, outWidth);
  const rows = tfBilinearPositions(height, outHeight);
  const out = new Float32Array(outWidth * outHeight * channels);
  let to = 0;
  for (const y of rows) {
    for (const x of columns) {
      for (let c = 0; c < channels; c += 1) {
        const at = (row, column) => data[(row * width + column) * channels + c];
        const top = mix(at(y.lower, x.lower), at(y.lower, x.upper), x.share);
        const bottom = mix(at(y.upper, x.lower), at(y.upper, x.upper), x.share);
        out[to] = mix(top, bottom, y.share);
        to += 1;
      }
    }
  }
  return { data: out, width: outWidth, height: outHeight, channels };
}

/**
 * Resizes 8-bit pixels.
 *
 * @param {{data: Uint8Array, width: number, height: number, channels: number}} planes
 * @param {number} width Pixels, at least 1.
 * @param {number} height Pixels, at least 1.
 * @param {string} method One of `METHODS`.
 * @returns Planes of the new size: 8-bit, or float32 for `tf:bilinear`. The same object when the
 *   size does not change.
 */
export function resize(planes, width, height, method) {
  if (planes.width === width && planes.height === height) return planes;
  if (method === 'pillow:nearest') return pick(planes, width, height, pillowNearestPositions);
  if (method === 'tf:nearest') return pick(planes, width, height, tfNearestPositions);
  if (method === 'tf:bilinear') return tfBilinear(planes, width, height);
  const filter = FILTERS[method];
  const wide = planes.width === width ? planes : horizontalPass(planes, width, filter);
  return wide.height === height ? wide : verticalPass(wide, height, filter);
}
