// NumPy's .npy format (versions 1 to 3), C order, for browsers and Node.

/** A .npy file that cannot be read or holds something that is not supported. */
export class NpyError extends Error {
  constructor(message) {
    super(message);
    this.name = 'NpyError';
  }
}

// By dtype name: NumPy's type string and the typed array of the same layout. A bool is one byte.
export const DTYPES = {
  float32: { descr: '<f4', array: Float32Array },
  float64: { descr: '<f8', array: Float64Array },
  int64: { descr: '<i8', array: BigInt64Array },
  int32: { descr: '<i4', array: Int32Array },
  int16: { descr: '<i2', array: Int16Array },
  uint16: { descr: '<u2', array: Uint16Array },
  int8: { descr: '|i1', array: Int8Array },
  uint8: { descr: '|u1', array: Uint8Array },
  bool: { descr: '|b1', array: Uint8Array },
};

// Texts of a fixed number of bytes; shorter ones end with zeros.
const TEXT = /^\|S([1-9]\d*)$/;
const MAGIC = '\u0093NUMPY';
const PREFIX_BYTES = 12;

/**
 * Reads the header from the beginning of a file.
 *
 * @param {Uint8Array} bytes At least the whole header; 4 KiB are enough for any plain array.
 * @returns {{dtype: string, itemBytes: number, shape: number[], dataOffset: number}} `dtype` is a
 *   key of `DTYPES`, or `string`; `dataOffset` in bytes.
 */
export function parseNpyHeader(bytes) {
  const magic = String.fromCharCode(...bytes.subarray(0, 6));
  if (bytes.length < PREFIX_BYTES || magic !== MAGIC) throw new NpyError('not a .npy file');
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const long = bytes[6] >= 2;
  const start = long ? 12 : 10;
  const dataOffset = start + (long ? view.getUint32(8, true) : view.getUint16(8, true));
  if (dataOffset > bytes.length) throw new NpyError('the .npy header is cut off');
  const text = new TextDecoder().decode(bytes.subarray(start, dataOffset));
  return { ...parseDictionary(text), dataOffset };
}

function parseDictionary(text) {
  const descr = /'descr'\s*:\s*'([^']*)'/.exec(text)?.[1];
  const order = /'fortran_order'\s*:\s*(True|False)/.exec(text)?.[1];
  const shape = /'shape'\s*:\s*\(([^)]*)\)/.exec(text)?.[1];
  if (descr === undefined || order === undefined || shape === undefined) {
    throw new NpyError(`cannot read the .npy header ${text.trim()}`);
  }
  const textBytes = TEXT.exec(descr)?.[1];
  const dtype = textBytes !== undefined
    ? 'string' : Object.keys(DTYPES).find((name) => DTYPES[name].descr === descr);
  if (dtype === undefined) throw new NpyError(`the .npy dtype ${descr} is not supported`);
  const sizes = shape.split(',').filter((part) => part.trim() !== '').map(Number);
  if (order === 'True' && sizes.length > 1) {
    throw new NpyError('the .npy array is in Fortran order; save numpy.ascontiguousarray(x)');
  }
  const itemBytes = Number(textBytes ?? DTYPES[dtype].array.BYTES_PER_ELEMENT);
  return { dtype, itemBytes, shape: sizes };
}

/**
 * The values in an array's bytes, which begin at an aligned offset of their buffer.
 *
 * @param {{dtype: string, itemBytes: number}} header
 * @param {Uint8Array} bytes
 * @returns {TypedArray|string[]}
 */
export function npyValues({ dtype, itemBytes }, bytes) {
  if (dtype !== 'string') {
    return new DTYPES[dtype].array(bytes.buffer, bytes.byteOffset, bytes.length / itemBytes);
  }
  const decoder = new TextDecoder();
  return Array.from({ length: bytes.length / itemBytes }, (_, i) => {
    const item = bytes.subarray(i * itemBytes, (i + 1) * itemBytes);
    const end = item.findLastIndex((byte) => byte !== 0);
    return decoder.decode(item.subarray(0, end + 1));
  });
}

/**
 * Reads a whole file.
 *
 * @param {Uint8Array} bytes
 * @returns {{dtype: string, shape: number[], data: TypedArray|string[]}}
 */
export function parseNpy(bytes) {
  const header = parseNpyHeader(bytes);
  const { dtype, shape, dataOffset } = header;
  const count = shape.reduce((product, size) => product * size, 1);
  const end = dataOffset + count * header.itemBytes;
  if (end > bytes.length) throw new NpyError(`the .npy file ends before its ${count} values`);
  // A copy, because typed arrays need an aligned offset.
  return { dtype, shape, data: npyValues(header, bytes.slice(dataOffset, end)) };
}

/**
 * Makes a version 1 header.
 *
 * @param {string} dtype A key of `DTYPES`.
 * @param {number[]} shape
 * @returns {Uint8Array} Its length is a multiple of 64, as NumPy aligns it.
 */
export function npyHeader(dtype, shape) {
  const sizes = shape.length === 1 ? `${shape[0]},` : shape.join(', ');
  const text = `{'descr': '${DTYPES[dtype].descr}', 'fortran_order': False, 'shape': (${sizes}), }`;
  const padded = text.padEnd(Math.ceil((text.length + 11) / 64) * 64 - 11);
  const header = new Uint8Array(10 + padded.length + 1);
  header.set([0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59, 1, 0]);
  new DataView(header.buffer).setUint16(8, padded.length + 1, true);
  header.set(new TextEncoder().encode(`${padded}\n`), 10);
  return header;
}
