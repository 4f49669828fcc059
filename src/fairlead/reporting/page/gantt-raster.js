// The Gantt's bars, written straight into pixels: a hundred thousand rectangles cost a canvas half a second, and this a few
// hundredths. A line of pixels is made once for each accelerator and copied down its row.
const strengths = 32; // steps from idle ground to full colour

function rgbOf(hue, saturation, light) {
  const reach = (saturation / 100) * Math.min(light / 100, 1 - light / 100);
  return [0, 8, 4].map((n) => {
    const k = (n + hue / 30) % 12;
    return 255 * (light / 100 - reach * Math.max(-1, Math.min(k - 3, 9 - k, 1)));
  });
}

function rgbOfHex(text) { return [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16)); }

function pixelOf([red, green, blue]) { return ((255 << 24) | (Math.round(blue) << 16) | (Math.round(green) << 8) | Math.round(red)) >>> 0; }

const jobColours = Array.from({ length: 24 }, (_, i) => rgbOf((i * 137.508 + 205) % 360, [58, 52, 46][(i >> 1) % 3], [56, 66, 48][i % 3]));

// Each colour at each strength over the idle ground.
function shadesOver(ground) {
  const shades = new Uint32Array(jobColours.length * (strengths + 1));
  jobColours.forEach((colour, code) => {
    for (let s = 0; s <= strengths; s++) {
      shades[code * (strengths + 1) + s] = pixelOf(colour.map((part, i) => ground[i] + ((part - ground[i]) * s) / strengths));
    }
  });
  return shades;
}

// columns: see gantt-data.js. frame: {from, to, picked, code, width, top(band), row, bands, height, ratio} in device pixels.
// Returns how many bars were drawn, and those wide enough to carry a name.
function rasterize(pixels, columns, frame, card, idle) {
  const { width } = frame, shades = shadesOver(idle), ground = pixelOf(idle), names = [];
  pixels.fill(pixelOf(card));
  let bars = 0;
  for (const band of frame.bands) {
    for (let row = 0; row < band.size; row++) {
      const top = Math.max(0, Math.round(band.top + row * frame.row)), bottom = Math.min(frame.height, Math.round(band.top + (row + 1) * frame.row));
      if (bottom <= top) continue;
      for (let y = top; y < bottom; y++) pixels.fill(ground, y * width, (y + 1) * width);
      if (columns) bars += rasterizeRow(pixels, columns, band.first + row, top, bottom, frame, shades, names);
    }
  }
  return { bars, names };
}

function rasterizeRow(pixels, columns, row, top, bottom, frame, shades, names) {
  const { rows, job, start, end, reach, before, lane, lanes } = columns, { from, to, width, picked } = frame;
  const scale = width / (to - from), pixel = 1 / scale, last = rows[row + 1], shared = lanes[row] > 1;
  const gap = bottom - top > 5 * frame.ratio ? Math.round(frame.ratio) : 0, tall = (bottom - top) / lanes[row];
  const dim = picked >= 0 ? 0.16 : 1;
  let i = firstAbove(reach, from, rows[row], last), bars = 0;
  while (i < last && start[i] < to) {
    let next = i + 1, left, right, strength = 1, which = job[i];
    if (end[i] - start[i] >= pixel || shared) {
      left = Math.max(0, Math.round((start[i] - from) * scale));
      right = Math.min(width, Math.round((end[i] - from) * scale));
      if (right - left > 4 * frame.ratio) right -= 1;
      right = Math.max(right, left + 1);
    } else {
      left = Math.floor((start[i] - from) * scale);
      next = Math.max(next, firstAbove(start, from + (left + 1) * pixel, next, last));
      // A long stretch that begins in this pixel is the last to do so, and is drawn on its own.
      if (next - 1 > i && end[next - 1] - start[next - 1] >= pixel) next--;
      if (picked >= 0) for (let k = i; k < next; k++) if (job[k] === picked) which = picked;
      left = Math.max(0, left);
      right = left + 1;
      strength = 0.25 + 0.75 * Math.min(1, (before[next] - before[i]) * scale);
    }
    const level = Math.round((which === picked ? 1 : strength * dim) * strengths);
    const colour = shades[frame.code(which) * (strengths + 1) + level];
    const high = top + Math.round(lane[i] * tall), low = shared ? Math.max(high + 1, top + Math.round((lane[i] + 1) * tall) - gap) : bottom - gap;
    for (let y = high; y < (shared ? low : high + 1); y++) {
      for (let at = y * width + left, stop = y * width + Math.min(right, width); at < stop; at++) pixels[at] = colour;
    }
    if (right - left > 46 * frame.ratio && low - high >= 10 * frame.ratio && level === strengths) names.push([which, left, high, right, low]);
    bars++;
    i = next;
  }
  if (!shared) for (let y = top + 1; y < bottom - gap; y++) pixels.copyWithin(y * width, top * width, (top + 1) * width);
  return bars;
}
