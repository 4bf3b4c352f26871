// The model card: what the manifest says, for people.

import { $, bytesText, make } from './dom.js';

const CHANNELS = { gray: 'gray', rgb: 'RGB', bgr: 'BGR' };

function inputText({ name, image, shape, dtype }) {
  if (!image) return `${name}: ${shape.slice(1).map((n) => n ?? '?').join(' × ')} ${dtype}`;
  const { width, height, channels, resize, fit } = image;
  return `${width} × ${height} ${CHANNELS[channels]}, ${resize}, ${fit}`;
}

const share = (value) => `${(100 * value).toFixed(2)} %`;

function accuracyText(artifacts) {
  const measured = artifacts.filter(({ metrics }) => metrics?.accuracy !== undefined);
  if (measured.length === 0) return 'not measured';
  const source = measured.find(({ id }) => id === 'saved_model') ?? measured[0];
  return share(source.metrics.accuracy);
}

function sizeOf(manifest, id) {
  const { path } = manifest.artifacts.find((one) => one.id === id);
  const folder = path.slice(0, path.lastIndexOf('/') + 1);
  const isPart = (file) => (path.endsWith('.json') ? file.startsWith(folder) : file === path);
  const files = Object.entries(manifest.files ?? {}).filter(([file]) => isPart(file));
  return files.reduce((sum, [, { bytes }]) => sum + bytes, 0);
}

/** One line about the model: for the head of the page. */
export function summaryOf(manifest) {
  const { task, labels = [], inputs } = manifest;
  const size = inputs.map((input) => inputText(input).split(',')[0]).join('; ');
  const count = labels.length > 0 ? [`${labels.length} labels`] : [];
  return [...(task === 'none' ? [] : [task]), ...count, size].join(' · ');
}

/** Fills the card. */
export function show(manifest, candidates) {
  const { name, version, source = {}, tools = {}, artifacts, outputs, labels = [] } = manifest;
  const sizes = [...new Set(candidates.map(({ artifact }) => artifact))]
    .map((id) => `${id} ${bytesText(sizeOf(manifest, id))}`);
  const entries = [
    ['Model', `${name}, version ${version}`],
    ['Made from', [source.file, source.saved_by && `(${source.saved_by})`].filter(Boolean).join(' ')],
    ['Created', manifest.created ?? ''],
    ['Task', manifest.task],
    ['Input', manifest.inputs.map(inputText).join('; ')],
    ['Output', outputs.map((one) => `${one.name}, ${one.activation}`).join('; ')],
    ['Labels', labels.length > 12 ? `${labels.slice(0, 12).join(', ')} … (${labels.length})` : labels.join(', ')],
    ['Accuracy, measured when it was built', accuracyText(artifacts)],
    ['Files for browsers', sizes.join(', ')],
    ['Golden samples', manifest.golden ? `${manifest.golden.count}${manifest.golden.synthetic ? ', synthetic' : ''}` : 'none'],
    ['Made with', Object.entries(tools).filter(([tool]) => ['packager', 'tensorflow', 'keras'].includes(tool))
      .map(([tool, release]) => `${tool} ${release}`).join(', ')],
  ];
  $('card').replaceChildren(...entries.filter(([, text]) => text).map(
    ([term, text]) => make('div', {}, make('dt', {}, term), make('dd', {}, text)),
  ));
}
