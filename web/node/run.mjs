// Runs and verifies TF.js artifacts in Node with the code that browsers get.
//
//     node run.mjs run MODEL_JSON --inputs DIR --outputs DIR [--batch N] [--layers A,B [--logits]]
//     node run.mjs verify BUNDLE [--artifact ID] [--record FILE]
//
// Both take [--backend wasm|cpu] [--vendor DIR] [--debug]. Standard output is one JSON document
// (docs/bundle.md, "What the runners answer"), everything else goes to standard error.
// Exit codes: 0 ok, 1 failure, 2 usage, 3 a sample is outside its tolerance, 4 TF.js is missing or
// too old.

import { writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

import { evaluate } from './evaluate.mjs';
import { VendorMissing } from './tf.mjs';
import { verify } from './verify.mjs';

const HERE = dirname(fileURLToPath(import.meta.url));
const BACKENDS = ['wasm', 'cpu'];

class UsageError extends Error {}

const OPTIONS = {
  inputs: { type: 'string' },
  outputs: { type: 'string' },
  batch: { type: 'string', default: '32' },
  artifact: { type: 'string' },
  record: { type: 'string' },
  backend: { type: 'string' },
  vendor: { type: 'string', default: join(HERE, '..', 'vendor') },
  debug: { type: 'boolean', default: false },
  layers: { type: 'string' },
  logits: { type: 'boolean', default: false },
};

function parse(args) {
  let parsed;
  try {
    parsed = parseArgs({ args, options: OPTIONS, allowPositionals: true });
  } catch (error) {
    throw new UsageError(error.message);
  }
  const { values, positionals } = parsed;
  const [command, target, ...rest] = positionals;
  if (!['run', 'verify'].includes(command) || target === undefined || rest.length > 0) {
    throw new UsageError('expected: run MODEL_JSON … or verify BUNDLE …');
  }
  if (values.backend !== undefined && !BACKENDS.includes(values.backend)) {
    throw new UsageError(`--backend is one of ${BACKENDS.join(', ')}`);
  }
  const batch = Number(values.batch);
  if (!Number.isInteger(batch) || batch < 1) throw new UsageError('--batch is a whole number');
  if (command === 'run' && (values.inputs === undefined || values.outputs === undefined)) {
    throw new UsageError('run needs --inputs DIR and --outputs DIR');
  }
  return { ...values, batch, command, target };
}

async function runCommand(options) {
  const answer = await evaluate(options.target, options);
  return { answer, exitCode: 0 };
}

function verifyExitCode({ files, artifacts }, lacking) {
  const failed = artifacts.filter(({ status }) => status === 'failed');
  if (files.problems.length > 0 || failed.some(({ samples }) => samples === 0)) return 1;
  if (failed.length > 0) return 3;
  return lacking ? 4 : 0;
}

async function verifyCommand(options) {
  const { answer, recorded, lacking } = await verify(options.target, options);
  if (options.record !== undefined) writeFileSync(options.record, JSON.stringify(recorded));
  return { answer, exitCode: verifyExitCode(answer, lacking) };
}

function exitCodeOf(error) {
  if (error instanceof UsageError) return 2;
  return error instanceof VendorMissing ? 4 : 1;
}

async function main(args) {
  const options = parse(args);
  const action = options.command === 'run' ? runCommand : verifyCommand;
  const { answer, exitCode } = await action(options);
  process.stdout.write(`${JSON.stringify(answer)}\n`);
  return exitCode;
}

// TF.js prints to the console; standard output belongs to the answer alone.
console.log = console.error;
console.info = console.error;

main(process.argv.slice(2)).then(
  (exitCode) => { process.exitCode = exitCode; },
  (error) => {
    const hint = error.hint ? `\nhint: ${error.hint}` : '';
    const debug = process.argv.includes('--debug');
    console.error(debug ? error : `run.mjs: ${error.message}${hint}`);
    process.exitCode = exitCodeOf(error);
  },
);
