// Files below a folder, by names that come from a bundle and may not lead out of it.

import { readFileSync, realpathSync } from 'node:fs';
import { isAbsolute, join, relative, sep } from 'node:path';
import { fileURLToPath } from 'node:url';

/** A name that leads out of its folder: absolute, with `..`, or by a symbolic link. */
export class OutsideError extends Error {
  constructor(folder, name) {
    super(`${name} lies outside ${folder}`);
    this.name = 'OutsideError';
  }
}

/**
 * The path of a file in a folder.
 *
 * @param {string} folder
 * @param {string} name Relative to the folder, with `/`.
 * @returns {string} An existing file's path without symbolic links.
 * @throws {OutsideError} It leads out of the folder.
 * @throws {Error} There is no such file (`code` is `ENOENT`).
 */
export function inside(folder, name) {
  const way = relative(folder, join(folder, ...name.split('/')));
  if (isAbsolute(name) || way.split(sep)[0] === '..') throw new OutsideError(folder, name);
  const path = realpathSync(join(folder, way));
  const real = relative(realpathSync(folder), path);
  if (isAbsolute(real) || real.split(sep)[0] === '..') throw new OutsideError(folder, name);
  return path;
}

/** A `fetch` of file addresses below a folder, for `openBundle`. */
export function fetchBelow(folder) {
  return async (url) => {
    const name = relative(folder, fileURLToPath(url)).replaceAll(sep, '/');
    let bytes;
    try {
      bytes = readFileSync(inside(folder, name));
    } catch (error) {
      if (error.code !== 'ENOENT') throw error;
      return { ok: false, status: 404 };
    }
    return {
      ok: true, status: 200,
      arrayBuffer: async () =>
        bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength),
    };
  };
}
