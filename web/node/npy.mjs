// Reads and writes .npy files in pieces, so that an array may be larger than memory.

import { closeSync, openSync, readSync, writeSync } from 'node:fs';

import { npyHeader, NpyError, npyValues, parseNpyHeader } from '../npy.js';

const HEADER_BYTES = 4096;

const product = (shape) => shape.reduce((total, size) => total * size, 1);

function readFully(file, bytes, position) {
  let done = 0;
  while (done < bytes.length) {
    const count = readSync(file, bytes, done, bytes.length - done, position + done);
    if (count === 0) break;
    done += count;
  }
  return done;
}

/** An open array whose first axis is read piece by piece. */
export class NpyReader {
  #file;
  #header;
  #rowBytes;

  /** @param {string} path */
  constructor(path) {
    this.#file = openSync(path, 'r');
    try {
      this.#readHeader();
    } catch (error) {
      this.close();
      throw new NpyError(`${path}: ${error.message}`);
    }
    this.path = path;
  }

  #readHeader() {
    const bytes = new Uint8Array(HEADER_BYTES);
    const header = parseNpyHeader(bytes.subarray(0, readFully(this.#file, bytes, 0)));
    const { dtype, shape, itemBytes } = header;
    if (shape.length === 0) throw new NpyError('a single number has no samples');
    this.dtype = dtype;
    this.shape = shape;
    this.#header = header;
    this.#rowBytes = product(shape.slice(1)) * itemBytes;
  }

  /**
   * Reads the rows from `start` to `end` of the first axis.
   *
   * @returns {{data: TypedArray|string[], shape: number[], dtype: string}}
   */
  rows(start, end) {
    const bytes = new Uint8Array((end - start) * this.#rowBytes);
    const position = this.#header.dataOffset + start * this.#rowBytes;
    if (readFully(this.#file, bytes, position) < bytes.length) {
      throw new NpyError(`${this.path}: the file ends before row ${end}`);
    }
    const data = npyValues(this.#header, bytes);
    return { data, shape: [end - start, ...this.shape.slice(1)], dtype: this.dtype };
  }

  close() {
    closeSync(this.#file);
  }
}

/** Writes an array of known shape piece by piece along its first axis. */
export class NpyWriter {
  #file;

  /**
   * @param {string} path
   * @param {string} dtype A key of `DTYPES`.
   * @param {number[]} shape Of the whole array.
   */
  constructor(path, dtype, shape) {
    this.#file = openSync(path, 'w');
    writeSync(this.#file, npyHeader(dtype, shape));
  }

  /** Appends values in C order. */
  append(data) {
    const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
    for (let done = 0; done < bytes.length;) {
      done += writeSync(this.#file, bytes, done, bytes.length - done);
    }
  }

  close() {
    closeSync(this.#file);
  }
}
