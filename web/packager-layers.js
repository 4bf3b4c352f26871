// Layers that tfjs-layers 4.22 lacks, or computes differently from Keras 3.
//
// Load it before a model that needs it, as a module or as a plain script:
//
//     import './packager-layers.js'; packagerLayers.register(tf);
//     <script src="tf.min.js"></script><script src="packager-layers.js"></script>
//
// One file without exports, so that it can be both. A class here is a function of the inputs, the
// configuration and the weights; `register` makes a tf.layers.Layer of each. Only kernels that the
// cpu, wasm, webgl and webgpu back ends all have are used: einsum, for instance, is no kernel of wasm.
//
// All configuration is written by packager/targets, in the spelling that TF.js leaves alone:
// camelCase, because TF.js rewrites snake_case in every string.

(() => {
  // ---------------------------------------------------------------- helpers

  const range = (count) => [...Array(count).keys()];
  const product = (sizes) => sizes.reduce((total, size) => total * size, 1);
  const asFloat = (tf, x) => (x.dtype === 'float32' ? x : tf.cast(x, 'float32'));
  const asBool = (tf, x) => (x.dtype === 'bool' ? x : tf.notEqual(x, 0));
  const positive = (axis, rank) => (axis < 0 ? axis + rank : axis);

  // `yes` where the mask holds, else `no`; both must be finite. Unlike tf.where it broadcasts on
  // every back end without copying the mask.
  function blend(tf, mask, yes, no) {
    const keep = asFloat(tf, mask);
    return tf.add(tf.mul(yes, keep), tf.mul(no, tf.sub(1, keep)));
  }

  function matmul(tf, a, b) {
    if (b.rank > 2 || a.rank === 2) return tf.matMul(a, b);
    const flat = tf.matMul(a.reshape([-1, a.shape[a.rank - 1]]), b);
    return flat.reshape([...a.shape.slice(0, -1), b.shape[1]]);
  }

  // Two operands, no repeated letters within one, no ellipsis; packager refuses the rest.
  function einsum(tf, equation, a, b) {
    const [inputs, out] = equation.split('->');
    const [left, right] = inputs.split(',').map((letters) => [...letters]);
    const result = [...out];
    const sizes = {};
    left.forEach((letter, i) => { sizes[letter] = a.shape[i]; });
    right.forEach((letter, i) => { sizes[letter] = b.shape[i]; });
    const drop = (x, letters, other) => {
      const axes = range(letters.length).filter(
        (i) => !result.includes(letters[i]) && !other.includes(letters[i]),
      );
      const kept = letters.filter((_, i) => !axes.includes(i));
      return [axes.length > 0 ? tf.sum(x, axes) : x, kept];
    };
    const [x, xs] = drop(a, left, right);
    const [y, ys] = drop(b, right, left);
    const both = xs.filter((letter) => ys.includes(letter));
    const batch = both.filter((letter) => result.includes(letter));
    const summed = both.filter((letter) => !result.includes(letter));
    const xFree = xs.filter((letter) => !ys.includes(letter));
    const yFree = ys.filter((letter) => !xs.includes(letter));
    const count = (letters) => product(letters.map((letter) => sizes[letter]));
    const arranged = (tensor, letters, groups) => tf
      .transpose(tensor, groups.flat().map((letter) => letters.indexOf(letter)))
      .reshape(groups.map(count));
    const multiplied = tf.matMul(
      arranged(x, xs, [batch, xFree, summed]), arranged(y, ys, [batch, summed, yFree]),
    );
    const order = [...batch, ...xFree, ...yFree];
    return tf.transpose(
      multiplied.reshape(order.map((letter) => sizes[letter])),
      result.map((letter) => order.indexOf(letter)),
    );
  }

  function moments(tf, x, axes) {
    const mean = tf.mean(x, axes, true);
    return { mean, variance: tf.mean(tf.square(tf.sub(x, mean)), axes, true) };
  }

  // ---------------------------------------------------------------- activations

  const hardSigmoid = (tf, x) => tf.mul(tf.relu6(tf.add(x, 3)), 1 / 6);

  function sparsemax(tf, x, axis) {
    const last = x.rank - 1;
    const at = positive(axis, x.rank);
    const order = range(x.rank).map((i) => (i === at ? last : i === last ? at : i));
    const rows = tf.transpose(x, order);
    const size = rows.shape[last];
    const sorted = tf.topk(rows, size).values;
    const sums = tf.sub(tf.cumsum(sorted, last), 1);
    const ranks = tf.range(1, size + 1, 1, 'float32');
    const support = tf.cast(tf.greater(tf.mul(sorted, ranks), sums), 'float32');
    // As Keras 3.15 has it: the sums of all entries of the support, not its last one.
    const total = tf.sub(tf.sum(tf.mul(tf.cumsum(sorted, last), support), last, true), 1);
    const threshold = tf.div(total, tf.sum(support, last, true));
    return tf.transpose(tf.relu(tf.sub(rows, threshold)), order);
  }

  const ACTIVATIONS = {
    hardSigmoid,
    hardSilu: (tf, x) => tf.mul(x, hardSigmoid(tf, x)),
    exponential: (tf, x) => tf.exp(x),
    leakyRelu: (tf, x, slope = 0.2) => tf.leakyRelu(x, slope),
    logSigmoid: (tf, x) => tf.neg(tf.softplus(tf.neg(x))),
    celu: (tf, x, alpha = 1) => tf.add(
      tf.relu(x), tf.mul(tf.expm1(tf.div(tf.minimum(x, 0), alpha)), alpha),
    ),
    elu: (tf, x, alpha = 1) => tf.add(
      tf.relu(x), tf.mul(tf.expm1(tf.minimum(x, 0)), alpha),
    ),
    glu: (tf, x, axis = -1) => {
      const [value, gate] = tf.split(x, 2, positive(axis, x.rank));
      return tf.mul(value, tf.sigmoid(gate));
    },
    geluTanh: (tf, x) => {
      const inner = tf.mul(tf.add(x, tf.mul(tf.mul(x, tf.square(x)), 0.044715)), Math.sqrt(2 / Math.PI));
      return tf.mul(tf.mul(x, 0.5), tf.add(tf.tanh(inner), 1));
    },
    hardTanh: (tf, x) => tf.clipByValue(x, -1, 1),
    hardShrink: (tf, x, threshold = 0.5) => tf.mul(
      x, tf.cast(tf.greater(tf.abs(x), threshold), 'float32'),
    ),
    softShrink: (tf, x, threshold = 0.5) => tf.sub(
      tf.relu(tf.sub(x, threshold)), tf.relu(tf.sub(tf.neg(x), threshold)),
    ),
    sparsePlus: (tf, x) => tf.add(
      tf.mul(tf.square(tf.add(tf.clipByValue(x, -1, 1), 1)), 0.25), tf.relu(tf.sub(x, 1)),
    ),
    sparseSigmoid: (tf, x) => tf.clipByValue(tf.mul(tf.add(x, 1), 0.5), 0, 1),
    sparsemax: (tf, x, axis = -1) => sparsemax(tf, x, axis),
    squareplus: (tf, x, b = 4) => tf.mul(tf.add(x, tf.sqrt(tf.add(tf.square(x), b))), 0.5),
    tanhShrink: (tf, x) => tf.sub(x, tf.tanh(x)),
    threshold: (tf, x, threshold = 1, otherwise = 0) => blend(
      tf, tf.greater(x, threshold), x, otherwise,
    ),
  };

  // What a layer's configuration may call an activation, ours and those of TF.js.
  const STOCK_ACTIVATIONS = {
    linear: (_tf, x) => x,
    relu: (tf, x) => tf.relu(x),
    relu6: (tf, x) => tf.relu6(x),
    sigmoid: (tf, x) => tf.sigmoid(x),
    // The older definition; Keras 3's is PackagerHardSigmoid.
    hardSigmoid: (tf, x) => tf.clipByValue(tf.add(tf.mul(x, 0.2), 0.5), 0, 1),
    tanh: (tf, x) => tf.tanh(x),
    softmax: (tf, x) => tf.softmax(x),
    logSoftmax: (tf, x) => tf.logSoftmax(x),
    softplus: (tf, x) => tf.softplus(x),
    softsign: (tf, x) => tf.div(x, tf.add(tf.abs(x), 1)),
    elu: (tf, x) => tf.elu(x),
    selu: (tf, x) => tf.selu(x),
    swish: (tf, x) => tf.mul(x, tf.sigmoid(x)),
    gelu: (tf, x) => tf.mul(tf.mul(x, 0.5), tf.add(tf.erf(tf.div(x, Math.SQRT2)), 1)),
    mish: (tf, x) => tf.mul(x, tf.tanh(tf.softplus(x))),
  };

  const activationClass = (name) => `Packager${name[0].toUpperCase()}${name.slice(1)}`;
  const OURS = new Map(Object.entries(ACTIVATIONS).map(([name, f]) => [activationClass(name), f]));

  function activate(tf, name, x) {
    const apply = OURS.get(name) ?? STOCK_ACTIVATIONS[name ?? 'linear'];
    if (apply === undefined) throw new Error(`packager-layers.js has no activation ${name}`);
    return apply(tf, x);
  }

  // ---------------------------------------------------------------- operators on tensors

  const UNARY = [
    'abs', 'acos', 'acosh', 'asin', 'asinh', 'atan', 'atanh', 'ceil', 'cos', 'cosh', 'erf', 'exp',
    'expm1', 'floor', 'isFinite', 'isInf', 'isNaN', 'log', 'log1p', 'logicalNot', 'neg', 'onesLike',
    'reciprocal', 'round', 'rsqrt', 'sign', 'sin', 'sinh', 'sqrt', 'square', 'tan', 'zerosLike',
  ];
  const BINARY = [
    'add', 'atan2', 'div', 'equal', 'floorDiv', 'greater', 'greaterEqual', 'less', 'lessEqual',
    'logicalAnd', 'logicalOr', 'logicalXor', 'maximum', 'minimum', 'mod', 'mul', 'notEqual', 'pow',
    'sub',
  ];
  const REDUCTIONS = ['all', 'any', 'max', 'mean', 'min', 'prod', 'sum', 'logSumExp'];

  function reduced(name) {
    return (tf, x, axis, keepDims) => tf[name](
      name === 'all' || name === 'any' ? asBool(tf, x) : x, axis ?? undefined, keepDims,
    );
  }

  function variance(tf, x, axis, keepDims) {
    const axes = axis ?? range(x.rank);
    return tf.mean(tf.square(tf.sub(x, tf.mean(x, axes, true))), axes, keepDims);
  }

  function argument(name) {
    return (tf, x, axis, keepDims) => {
      const flat = axis === null ? x.flatten() : x;
      const found = tf[name](flat, axis === null ? 0 : axis);
      if (!keepDims) return found;
      return axis === null ? found.reshape(x.shape.map(() => 1)) : tf.expandDims(found, axis);
    };
  }

  function maskedMean(tf, x, mask, keepDims) {
    const weights = tf.expandDims(asFloat(tf, mask), 2);
    const sum = tf.sum(tf.mul(x, weights), 1, keepDims);
    return tf.div(sum, tf.sum(weights, 1, keepDims));
  }

  function maskedSoftmax(tf, x, mask, axis) {
    const keep = asFloat(tf, asBool(tf, mask));
    return tf.mul(softmax(tf, blend(tf, keep, x, -1e9), axis), keep);
  }

  // tf.softmax knows the last axis only.
  function softmax(tf, x, axis) {
    if (axis === -1 || axis === x.rank - 1) return tf.softmax(x);
    const exponentials = tf.exp(tf.sub(x, tf.max(x, axis, true)));
    return tf.div(exponentials, tf.sum(exponentials, axis, true));
  }

  function repeat(tf, x, count, axis) {
    const at = positive(axis, x.rank);
    const copies = tf.tile(tf.expandDims(x, at + 1), range(x.rank + 1).map((i) => (i === at + 1 ? count : 1)));
    return copies.reshape(x.shape.map((size, i) => (i === at ? size * count : size)));
  }

  // Sizes of -1 or null stay as they are in x.
  function broadcastTo(tf, x, shape) {
    const offset = shape.length - x.rank;
    return tf.broadcastTo(x, shape.map((size, i) => (size < 0 || size === null ? x.shape[i - offset] : size)));
  }

  const OPERATORS = {
    ...Object.fromEntries(UNARY.map((name) => [name, (tf, x) => tf[name](x)])),
    ...Object.fromEntries(BINARY.map((name) => [name, (tf, a, b) => tf[name](a, b)])),
    ...Object.fromEntries(REDUCTIONS.map((name) => [name, reduced(name)])),
    ...STOCK_ACTIVATIONS,
    ...ACTIVATIONS,
    argMax: argument('argMax'),
    argMin: argument('argMin'),
    broadcastTo,
    cast: (tf, x, dtype) => tf.cast(x, dtype),
    clip: (tf, x, low, high) => tf.minimum(tf.maximum(x, low), high),
    concat: (tf, list, axis) => tf.concat(list, axis),
    cumprod: (tf, x, axis) => tf.cumprod(x, axis),
    cumsum: (tf, x, axis) => tf.cumsum(x, axis),
    divNoNan: (tf, a, b) => {
      const zero = asFloat(tf, tf.equal(b, 0));
      return tf.mul(tf.div(a, tf.add(b, zero)), tf.sub(1, zero));
    },
    einsum: (tf, equation, a, b) => einsum(tf, equation, a, b),
    expandDims: (tf, x, axis) => tf.expandDims(x, axis),
    flip: (tf, x, axis) => tf.reverse(x, axis ?? undefined),
    gather: (tf, x, indices, axis) => tf.gather(x, tf.cast(indices, 'int32'), positive(axis, x.rank)),
    identity: (_tf, ...tensors) => tensors,
    logSoftmax: (tf, x, axis) => tf.log(softmax(tf, x, axis)),
    masking: (tf, x, value) => tf.mul(x, asFloat(tf, tf.any(tf.notEqual(x, value), -1, true))),
    maskedMean,
    maskedSoftmax,
    matmul,
    mirrorPad: (tf, x, widths, mode) => tf.mirrorPad(x, widths, mode),
    moments: (tf, x, axes, keepDims) => {
      const found = tf.moments(x, axes, keepDims);
      return [found.mean, found.variance];
    },
    normalize: (tf, x, axis, order, epsilon) => {
      if (order === 2) {
        const squares = tf.sum(tf.square(x), axis, true);
        return tf.mul(x, tf.rsqrt(tf.maximum(squares, epsilon * epsilon)));
      }
      const size = tf.pow(tf.sum(tf.pow(tf.abs(x), order), axis, true), 1 / order);
      return tf.div(x, tf.maximum(size, epsilon));
    },
    oneHot: (tf, x, depth) => tf.oneHot(tf.cast(x, 'int32'), depth),
    pad: (tf, x, widths, value) => tf.pad(x, widths, value ?? 0),
    powerSum: (tf, x, order, axis, keepDims) => tf.pow(
      tf.sum(tf.pow(tf.abs(x), order), axis ?? undefined, keepDims), 1 / order,
    ),
    reluGeneral: (tf, x, slope, ceiling, threshold) => {
      const above = tf.mul(x, asFloat(tf, tf.greater(x, threshold)));
      const clipped = ceiling === null ? above : tf.clipByValue(above, 0, ceiling);
      return tf.sub(clipped, tf.mul(tf.relu(tf.sub(threshold, x)), slope));
    },
    repeat,
    reshape: (tf, x, shape) => tf.reshape(x, shape),
    softCap: (tf, x, cap) => tf.mul(tf.tanh(tf.div(x, cap)), cap),
    softmax,
    split: (tf, x, sizes, axis) => tf.split(x, sizes, axis),
    squeeze: (tf, x, axes) => tf.squeeze(x, axes ?? undefined),
    stack: (tf, list, axis) => tf.stack(list, axis),
    std: (tf, x, axis, keepDims) => tf.sqrt(variance(tf, x, axis, keepDims)),
    stridedSlice: (tf, x, ...spec) => tf.stridedSlice(x, ...spec),
    tile: (tf, x, counts) => tf.tile(x, counts),
    transpose: (tf, x, axes) => tf.transpose(x, axes ?? undefined),
    // The steps that were made part of the batch, as `like` has them.
    unfold: (_tf, x, like) => x.reshape([...like.shape.slice(0, 2), ...x.shape.slice(1)]),
    var: variance,
    where: (tf, condition, yes, no) => tf.where(asBool(tf, condition), yes, no),
  };

  // Arguments are JSON values; {tensor: i} stands for an input, {weight: name} for a weight.
  function resolve(value, inputs, weights) {
    if (Array.isArray(value)) return value.map((item) => resolve(item, inputs, weights));
    if (value === null || typeof value !== 'object') return value;
    if ('number' in value) return Number(value.number);
    return 'tensor' in value ? inputs[value.tensor] : weights[value.weight];
  }

  function operator(tf, inputs, { op, operands, dtype, operandDtype }, weights) {
    const converted = operandDtype == null ? inputs : inputs.map((x) => tf.cast(x, operandDtype));
    const result = OPERATORS[op](tf, ...resolve(operands, converted, weights));
    const cast = (x) => (dtype == null || x.dtype === dtype ? x : tf.cast(x, dtype));
    return Array.isArray(result) ? result.map(cast) : cast(result);
  }

  // ---------------------------------------------------------------- convolutions

  // The kernels that TF.js fuses with bias and activation.
  const FUSED = { linear: 'linear', relu: 'relu', relu6: 'relu6' };

  function finished(tf, x, bias, activation) {
    return activate(tf, activation, bias === undefined ? x : tf.add(x, bias));
  }

  function fused(tf, convolve, x, filter, { strides, padding, dilation, activation }, bias) {
    const known = FUSED[activation ?? 'linear'];
    const result = convolve({
      x, filter, strides, pad: padding, dataFormat: 'NHWC', dilations: dilation, bias,
      activation: known ?? 'linear',
    });
    return known === undefined ? activate(tf, activation, result) : result;
  }

  // One dimension is an image of width 1; `before` are the zeros of causal padding.
  function asImage(tf, x, config) {
    const image = config.rank === 1 ? tf.expandDims(x, 2) : x;
    const { before } = config;
    return before > 0 ? tf.pad(image, [[0, 0], [before, 0], [0, 0], [0, 0]]) : image;
  }

  const fromImage = (tf, x, config) => (config.rank === 1 ? tf.squeeze(x, [2]) : x);

  function conv(tf, [x], config, { kernel, bias }) {
    const image = asImage(tf, x, config);
    const { groups = 1 } = config;
    if (groups === 1) {
      return fromImage(tf, fused(tf, tf.fused.conv2d, image, kernel, config, bias), config);
    }
    const filters = tf.split(kernel, groups, 3);
    const parts = tf.split(image, groups, 3).map((part, i) => tf.conv2d(
      part, filters[i], config.strides, config.padding, 'NHWC', config.dilation,
    ));
    return fromImage(tf, finished(tf, tf.concat(parts, 3), bias, config.activation), config);
  }

  function groupedConv3d(tf, [x], { groups, strides, padding, dilation, activation }, { kernel, bias }) {
    const filters = tf.split(kernel, groups, 4);
    const parts = tf.split(x, groups, 4).map((part, i) => tf.conv3d(
      part, filters[i], strides, padding, 'NDHWC', dilation,
    ));
    return finished(tf, tf.concat(parts, 4), bias, activation);
  }

  function convLength(size, kernel, stride, dilation, padding) {
    if (size === null) return null;
    if (padding === 'same') return Math.ceil(size / stride);
    return Math.floor((size - dilation * (kernel - 1) - 1) / stride) + 1;
  }

  // Of images; in one dimension packager writes the output's shape.
  function convShape(kernel, channels) {
    return (input, { strides, dilation, padding }) => {
      const sizes = [0, 1].map((i) => convLength(
        input[i + 1], kernel[i], strides[i], dilation[i], padding,
      ));
      return [input[0], ...sizes, channels];
    };
  }

  const kernelOf = ({ weightShapes }) => weightShapes.find(([name]) => name === 'kernel')[1];

  function convOutput(input, config) {
    const kernel = kernelOf(config);
    return convShape(kernel, kernel[3])(input, config);
  }

  function depthwiseOutput(input, config) {
    const kernel = kernelOf(config);
    return convShape(kernel, kernel[2] * kernel[3])(input, config);
  }

  function depthwiseConv(tf, [x], config, { kernel, bias }) {
    const image = asImage(tf, x, config);
    return fromImage(tf, fused(tf, tf.fused.depthwiseConv2d, image, kernel, config, bias), config);
  }

  function separableConv(tf, [x], config, { depthwiseKernel, pointwiseKernel, bias }) {
    const image = asImage(tf, x, config);
    const spread = tf.depthwiseConv2d(
      image, depthwiseKernel, config.strides, config.padding, 'NHWC', config.dilation,
    );
    const point = { ...config, strides: 1, dilation: 1, padding: 'valid' };
    return fromImage(tf, fused(tf, tf.fused.conv2d, spread, pointwiseKernel, point, bias), config);
  }

  // The wasm back end's own kernel is wrong in three dimensions: a convolution of the input with
  // zeros between its elements is the same. `edges` are the zeros around it.
  function convTranspose3d(tf, [x], { strides, edges, activation }, { kernel, bias }) {
    let spread = x;
    strides.forEach((stride, i) => {
      if (stride === 1) return;
      const axis = i + 1;
      const zeros = range(6).map((k) => (k === axis + 1 ? [0, stride - 1] : [0, 0]));
      const { shape } = spread;
      const grown = shape.map((size, k) => (k === axis ? size * stride : size));
      // One axis more than three-dimensional images have, so that each element gets its zeros.
      const padded = tf.pad(spread.reshape([...shape.slice(0, axis + 1), 1, ...shape.slice(axis + 1)]), zeros);
      spread = tf.slice(padded.reshape(grown), shape.map(() => 0), grown.map(
        (size, k) => (k === axis ? size - stride + 1 : size),
      ));
    });
    const framed = tf.pad(spread, [[0, 0], ...edges, [0, 0]]);
    const turned = tf.transpose(tf.reverse(kernel, [0, 1, 2]), [0, 1, 2, 4, 3]);
    return finished(tf, tf.conv3d(framed, turned, 1, 'valid'), bias, activation);
  }

  // tfjs-layers computes the output's size itself, without output_padding.
  function convTranspose(tf, [x], config, { kernel, bias }) {
    const image = asImage(tf, x, config);
    const shape = [x.shape[0], ...config.size, kernel.shape[2]];
    const result = tf.conv2dTranspose(image, kernel, shape, config.strides, config.padding);
    return fromImage(tf, finished(tf, result, bias, config.activation), config);
  }

  function dense(tf, [x], config, { kernel, bias }) {
    return finished(tf, matmul(tf, x, kernel), bias, config.activation);
  }

  function einsumDense(tf, [x], { equation, activation }, { kernel, bias }) {
    return finished(tf, einsum(tf, equation, x, kernel), bias, activation);
  }

  // ---------------------------------------------------------------- normalisation

  function scaled(tf, x, { gamma, beta }, shape) {
    const grown = gamma === undefined ? x : tf.mul(x, gamma.reshape(shape ?? gamma.shape));
    return beta === undefined ? grown : tf.add(grown, beta.reshape(shape ?? beta.shape));
  }

  function groupNormalization(tf, [x], { groups, axis, epsilon }, weights) {
    const at = positive(axis, x.rank);
    const inside = x.shape[at] / groups;
    const split = x.reshape([...x.shape.slice(0, at), groups, inside, ...x.shape.slice(at + 1)]);
    const axes = range(split.rank).filter((i) => i !== 0 && i !== at);
    const { mean, variance: spread } = moments(tf, split, axes);
    const normal = tf.mul(tf.sub(split, mean), tf.rsqrt(tf.add(spread, epsilon)));
    return scaled(tf, normal.reshape(x.shape), weights, x.shape.map((size, i) => (i === at ? size : 1)));
  }

  function layerNormalization(tf, [x], { axes, epsilon, rms, shape }, weights) {
    const { mean, variance: spread } = moments(tf, x, axes);
    if (rms) {
      const size = tf.rsqrt(tf.add(tf.mean(tf.square(x), axes, true), epsilon));
      return scaled(tf, tf.mul(x, size), weights, shape);
    }
    return scaled(tf, tf.mul(tf.sub(x, mean), tf.rsqrt(tf.add(spread, epsilon))), weights, shape);
  }

  // ---------------------------------------------------------------- recurrent layers

  const CELLS = {
    simple(tf, input, [h], { kernels, bias }, run) {
      const next = run.activation(tf.add(input, tf.add(tf.matMul(h, kernels[0]), bias ?? 0)));
      return [next, [next]];
    },
    lstm(tf, input, [h, c], { kernels, units }, run) {
      const all = tf.add(input, tf.matMul(h, kernels[0]));
      const [i, f, g, o] = tf.split(all, [units, units, units, units], 1);
      const memory = tf.add(
        tf.mul(run.recurrent(f), c), tf.mul(run.recurrent(i), run.activation(g)),
      );
      const next = tf.mul(run.recurrent(o), run.activation(memory));
      return [next, [next, memory]];
    },
    gru(tf, input, [h], { kernels, bias, units }, run) {
      const [xz, xr, xh] = tf.split(input, [units, units, units], 1);
      let inner = tf.matMul(h, kernels[0]);
      if (bias !== undefined) inner = tf.add(inner, bias);
      const [hz, hr, hh] = tf.split(inner, inner.shape[1] / units, 1);
      const z = run.recurrent(tf.add(xz, hz));
      const r = run.recurrent(tf.add(xr, hr));
      // Reset after the product with the kernel (the default of Keras), or before it.
      const candidate = hh === undefined ? tf.matMul(tf.mul(r, h), kernels[1]) : tf.mul(r, hh);
      const fresh = run.activation(tf.add(xh, candidate));
      const next = tf.add(tf.mul(z, h), tf.mul(tf.sub(1, z), fresh));
      return [next, [next]];
    },
  };

  function cellOf(tf, { kind, units, resetAfter }, { recurrentKernel, recurrentBias }) {
    const split = kind === 'gru' && !resetAfter;
    const kernels = split ? tf.split(recurrentKernel, [2 * units, units], 1) : [recurrentKernel];
    return { kernels, bias: recurrentBias, units };
  }

  function recurrent(tf, inputs, config, weights) {
    const { kind, units, hasMask, goBackwards, returnSequences, returnState, zeroMasked } = config;
    const [x, ...rest] = inputs;
    const mask = hasMask ? asFloat(tf, rest.shift()) : undefined;
    const [batch, steps] = x.shape;
    const projected = matmul(tf, asFloat(tf, x), weights.kernel);
    const all = weights.bias === undefined ? projected : tf.add(projected, weights.bias);
    const run = {
      activation: (y) => activate(tf, config.activation, y),
      recurrent: (y) => activate(tf, config.recurrentActivation, y),
    };
    const cell = cellOf(tf, config, weights);
    const zeros = tf.zeros([batch, units]);
    let states = rest.length > 0 ? rest : kind === 'lstm' ? [zeros, zeros] : [zeros];
    let output = zeros;
    const outputs = [];
    for (const step of goBackwards ? range(steps).reverse() : range(steps)) {
      const input = tf.squeeze(tf.slice(all, [0, step, 0], [batch, 1, all.shape[2]]), [1]);
      let [next, fresh] = CELLS[kind](tf, input, states, cell, run);
      if (mask !== undefined) {
        const valid = tf.slice(mask, [0, step], [batch, 1]);
        next = zeroMasked ? tf.mul(next, valid) : blend(tf, valid, next, output);
        fresh = fresh.map((state, i) => blend(tf, valid, state, states[i]));
      }
      output = next;
      states = fresh;
      if (returnSequences) outputs.push(output);
    }
    const result = returnSequences ? tf.stack(outputs, 1) : output;
    return returnState ? [result, ...states] : result;
  }

  // ---------------------------------------------------------------- attention

  function sequenceMask(tf, rows, columns, keep) {
    const values = range(rows).flatMap((i) => range(columns).map((j) => (keep(i, j) ? 1 : 0)));
    return tf.tensor(values, [1, rows, columns]);
  }

  // All masks that apply, multiplied: [batch, queries, keys].
  function attentionMask(tf, given, config, rows, columns) {
    const masks = [];
    if (given.queryMask) masks.push(tf.expandDims(asFloat(tf, given.queryMask), 2));
    for (const name of ['valueMask', 'keyMask']) {
      if (given[name]) masks.push(tf.expandDims(asFloat(tf, given[name]), 1));
    }
    if (config.causal) masks.push(sequenceMask(tf, rows, columns, (i, j) => i >= j));
    const { window } = config;
    if (window) masks.push(sequenceMask(tf, rows, columns, (i, j) => Math.abs(i - j) < window));
    if (given.attentionMask) masks.push(asFloat(tf, asBool(tf, given.attentionMask)));
    return masks.length === 0 ? undefined : masks.reduce((a, b) => tf.mul(a, b));
  }

  const byRole = (inputs, roles) => Object.fromEntries(roles.map((role, i) => [role, inputs[i]]));

  function multiHeadAttention(tf, inputs, config, w) {
    const given = byRole(inputs, config.roles);
    const project = (x, name) => {
      const heads = einsum(tf, 'abc,cde->abde', x, w[`${name}Kernel`]);
      return w[`${name}Bias`] === undefined ? heads : tf.add(heads, w[`${name}Bias`]);
    };
    const query = project(given.query, 'query');
    const repeated = (x) => (config.repeats > 1 ? repeat(tf, x, config.repeats, 2) : x);
    const key = repeated(project(given.key ?? given.value, 'key'));
    const value = repeated(project(given.value, 'value'));
    let scores = einsum(tf, 'aecd,abcd->acbe', key, tf.mul(query, config.scale));
    let mask = attentionMask(tf, given, config, query.shape[1], key.shape[1]);
    if (mask !== undefined && mask.rank === 3) mask = tf.expandDims(mask, 1);
    // Without dropout and scores Keras takes another way, which leaves a row without any key even.
    const even = mask !== undefined && config.even;
    if (even) scores = blend(tf, mask, scores, -1e30);
    scores = mask === undefined || even ? tf.softmax(scores) : maskedSoftmax(tf, scores, mask, -1);
    let attended = einsum(tf, 'acbe,aecd->abcd', scores, value);
    if (w.gateKernel !== undefined) {
      attended = tf.mul(attended, tf.sigmoid(project(given.query, 'gate')));
    }
    const joined = einsum(tf, 'abcd,cdf->abf', attended, w.outputKernel);
    const output = w.outputBias === undefined ? joined : tf.add(joined, w.outputBias);
    return config.returnScores ? [output, scores] : output;
  }

  function attentionScores(tf, query, key, mode, { scale, weight }) {
    if (mode === 'dot') {
      const scores = tf.matMul(query, key, false, true);
      return scale === undefined ? scores : tf.mul(scores, scale);
    }
    const sums = tf.add(tf.expandDims(query, 2), tf.expandDims(key, 1));
    if (mode === 'additive') {
      const curved = tf.tanh(sums);
      return tf.sum(scale === undefined ? curved : tf.mul(curved, scale), -1);
    }
    const scores = tf.sum(tf.tanh(scale === undefined ? sums : tf.mul(sums, scale)), -1);
    return tf.mul(scores, weight);
  }

  function attention(tf, inputs, config, weights) {
    const { query, value, key = value, queryMask, valueMask } = byRole(inputs, config.roles);
    let scores = attentionScores(tf, query, key, config.mode, weights);
    const given = { valueMask };
    const mask = attentionMask(tf, given, config, query.shape[1], key.shape[1]);
    if (mask !== undefined) scores = tf.sub(scores, tf.mul(tf.sub(1, mask), 1e9));
    const shares = tf.softmax(scores);
    let output = tf.matMul(shares, value);
    if (queryMask) output = tf.mul(output, tf.expandDims(asFloat(tf, queryMask), 2));
    return config.returnScores ? [output, shares] : output;
  }

  // ---------------------------------------------------------------- pooling and images

  // Averages, or largest values, of the windows of one axis that Keras' adaptive pooling takes.
  function adaptive(tf, x, axis, count, kind) {
    const size = x.shape[axis];
    const parts = range(count).map((i) => {
      const start = Math.floor((i * size) / count);
      const end = Math.ceil(((i + 1) * size) / count);
      const begin = x.shape.map((_, k) => (k === axis ? start : 0));
      const sizes = x.shape.map((length, k) => (k === axis ? end - start : length));
      return tf[kind](tf.slice(x, begin, sizes), axis, true);
    });
    return tf.concat(parts, axis);
  }

  function adaptivePooling(tf, [x], { counts, kind }) {
    return counts.reduce((pooled, count, i) => adaptive(tf, pooled, i + 1, count, kind), x);
  }

  // `crop` is [top, left, height, width], `pad` [[top, bottom], [left, right]], both before resizing.
  function resize(tf, [x], { method, size, factors, crop, pad, fill }) {
    let image = asFloat(tf, x);
    const [batch, height, width, channels] = image.shape;
    if (crop) {
      image = tf.slice(image, [0, crop[0], crop[1], 0], [batch, crop[2], crop[3], channels]);
    }
    if (pad) image = tf.pad(image, [[0, 0], ...pad, [0, 0]], fill);
    const wanted = size ?? [height * factors[0], width * factors[1]];
    if (wanted[0] === image.shape[1] && wanted[1] === image.shape[2]) return tf.clone(image);
    return method === 'nearest'
      ? tf.image.resizeNearestNeighbor(image, wanted, false, true)
      : tf.image.resizeBilinear(image, wanted, false, true);
  }

  function autoContrast(tf, [x], { low, high }) {
    const scale = 255 / (high - low);
    const pixels = tf.mul(tf.sub(x, low), scale);
    const least = tf.min(pixels, [1, 2], true);
    const spread = tf.sub(tf.max(pixels, [1, 2], true), least);
    const flat = asFloat(tf, tf.equal(spread, 0));
    const stretch = tf.div(255, tf.add(spread, flat));
    const result = tf.clipByValue(tf.add(tf.mul(pixels, stretch), tf.neg(tf.mul(least, stretch))), 0, 255);
    return blend(tf, flat, x, tf.add(tf.div(result, scale), low));
  }

  // ---------------------------------------------------------------- categories

  function encode(tf, ids, { mode, depth }) {
    const whole = tf.cast(ids, 'int32');
    if (mode === 'int') return whole;
    const single = whole.shape[whole.rank - 1] === 1;
    if (mode === 'oneHot') {
      return tf.cast(tf.oneHot(single && whole.rank > 1 ? tf.squeeze(whole, [-1]) : whole, depth), 'float32');
    }
    const hot = tf.cast(tf.oneHot(whole, depth), 'float32');
    return mode === 'count' ? tf.sum(hot, -2) : tf.max(hot, -2);
  }

  function categoryEncoding(tf, [x, weights], config) {
    if (weights === undefined) return encode(tf, x, config);
    const hot = tf.cast(tf.oneHot(tf.cast(x, 'int32'), config.depth), 'float32');
    return tf.sum(tf.mul(hot, tf.expandDims(asFloat(tf, weights), -1)), -2);
  }

  function discretization(tf, [x], config, { boundaries }) {
    const above = tf.greaterEqual(tf.expandDims(asFloat(tf, x), -1), boundaries);
    return encode(tf, tf.sum(tf.cast(above, 'int32'), -1), config);
  }

  // The place of each value in the vocabulary, plus `offset`; `unknown` for those not in it.
  function integerLookup(tf, [x], config, { vocabulary }) {
    const hits = tf.cast(tf.equal(tf.expandDims(x, -1), vocabulary), 'int32');
    const places = tf.range(1, vocabulary.shape[0] + 1, 1, 'int32');
    const found = tf.sum(tf.mul(hits, places), -1);
    const missing = tf.cast(tf.equal(found, 0), 'int32');
    const ids = tf.add(tf.add(found, config.offset - 1), tf.mul(missing, config.unknown - config.offset + 1));
    return encode(tf, ids, config);
  }

  // ---------------------------------------------------------------- registration

  // `raw`: the inputs keep their type; all others get float32.
  const LAYERS = {
    Operator: { call: operator, raw: true },
    Conv: { call: conv, shape: convOutput },
    DepthwiseConv: { call: depthwiseConv, shape: depthwiseOutput },
    GroupedConv3D: { call: groupedConv3d },
    SeparableConv: { call: separableConv },
    ConvTranspose: { call: convTranspose },
    ConvTranspose3D: { call: convTranspose3d },
    Dense: { call: dense },
    EinsumDense: { call: einsumDense },
    GroupNormalization: { call: groupNormalization },
    LayerNormalization: { call: layerNormalization },
    Recurrent: { call: recurrent },
    MultiHeadAttention: { call: multiHeadAttention },
    Attention: { call: attention },
    AdaptivePooling: { call: adaptivePooling },
    Resize: { call: resize },
    AutoContrast: { call: autoContrast },
    CategoryEncoding: { call: categoryEncoding, raw: true },
    Discretization: { call: discretization },
    IntegerLookup: { call: integerLookup, raw: true },
  };

  function layerClass(tf, name, { call, raw, shape }) {
    return class extends tf.layers.Layer {
      static get className() { return name; }

      constructor(config) {
        super(config);
        this.settings = config;
        this.values = {};
      }

      build() {
        for (const [key, shape, dtype] of this.settings.weightShapes ?? []) {
          this.values[key] = this.addWeight(key, shape, dtype, tf.initializers.zeros());
        }
        this.built = true;
      }

      computeOutputShape(inputShape) {
        const first = Array.isArray(inputShape[0]) ? inputShape[0] : inputShape;
        const { outputShapes } = this.settings;
        if (outputShapes == null) return shape ? shape(first, this.settings) : first;
        const shapes = outputShapes.map((sizes) => (
          sizes[0] === null ? [first[0], ...sizes.slice(1)] : sizes
        ));
        return shapes.length === 1 ? shapes[0] : shapes;
      }

      call(inputs) {
        return tf.tidy(() => {
          const given = Array.isArray(inputs) ? inputs : [inputs];
          const tensors = raw ? given : given.map((x) => asFloat(tf, x));
          const weights = Object.fromEntries(
            Object.entries(this.values).map(([key, value]) => [key, value.read()]),
          );
          const result = call(tf, tensors, this.settings, weights);
          return Array.isArray(result) && result.length === 1 ? result[0] : result;
        });
      }

      getConfig() { return { ...super.getConfig(), ...this.settings }; }
    };
  }

  function activationObject(tf, name, apply) {
    return class extends tf.serialization.Serializable {
      static get className() { return name; }

      apply(x) { return tf.tidy(() => apply(tf, x)); }

      getConfig() { return {}; }
    };
  }

  const registered = new WeakSet();

  /** Makes the classes known to a TF.js namespace; once is enough. */
  function register(tf) {
    if (registered.has(tf)) return;
    registered.add(tf);
    for (const [name, spec] of Object.entries(LAYERS)) {
      tf.serialization.registerClass(layerClass(tf, `Packager${name}`, spec));
    }
    for (const [name, apply] of OURS) {
      tf.serialization.registerClass(activationObject(tf, name, apply));
    }
  }

  globalThis.packagerLayers = { register };
  if (globalThis.tf?.serialization !== undefined) register(globalThis.tf);
})();
