// Nodes and their GPUs as tiles on a canvas. A change repaints only the nodes it touches; the smallest tiles show 40,000 GPUs.
import { css, inkOn, isDark, jobColour, loadColour, groupColour } from "/console/colours.js";

const sizes = [76, 60, 46, 34, 24, 17, 12, 9, 7, 5],
  roomy = 17,
  tallest = 640,
  tallestLarge = 300,
  across = 8,
  headingHeight = 26;

// The largest tiles with which all nodes fit; names of nodes stand above tiles that leave room for them.
export function layoutTiles(nodes, types, width) {
  const shown = nodes.filter((node) => node && node.state !== "removed");
  const byType = types.map((_, type) => shown.filter((node) => node.type === type)).filter((group) => group.length);
  for (const tile of sizes) {
    const layout = layoutWith(byType, tile, width);
    if (layout.height <= (tile > 46 ? tallestLarge : tallest) || tile === sizes.at(-1)) return layout;
  }
  return null;
}

function layoutWith(groups, tile, width) {
  const label = tile >= roomy ? 15 : 0,
    gap = tile >= roomy ? 10 : tile >= 9 ? 5 : 3,
    step = tile + (tile >= 9 ? 2 : 1);
  const boxes = [],
    headings = [];
  let y = 0;
  for (const group of groups) {
    headings.push({ type: group[0].type, y });
    y += headingHeight;
    let x = 0,
      row = 0;
    for (const node of group) {
      const columns = Math.min(across, node.gpus),
        wide = Math.max(columns * step - (step - tile), label ? 62 : 0);
      const high = label + Math.ceil(node.gpus / across) * step;
      if (x && x + wide > width) {
        x = 0;
        y += row + gap;
        row = 0;
      }
      boxes.push({ node: node.index, first: node.first, gpus: node.gpus, x, y, wide, high });
      x += wide + gap;
      row = Math.max(row, high);
    }
    y += row + gap + 8;
  }
  const byNode = new Map(boxes.map((box) => [box.node, box]));
  return { boxes, byNode, headings, tile, label, step, height: Math.max(60, y) };
}

export function tileAt(layout, x, y) {
  for (const box of layout.boxes) {
    if (x < box.x || x > box.x + box.wide || y < box.y || y > box.y + box.high) continue;
    const column = Math.floor((x - box.x) / layout.step),
      row = Math.floor((y - box.y - layout.label) / layout.step);
    const place = row * across + column;
    return { box, gpu: row >= 0 && column < across && place < box.gpus ? place : -1 };
  }
  return null;
}

export function makeTiles(canvas, store) {
  const context = canvas.getContext("2d"),
    face = getComputedStyle(document.body).fontFamily;
  const view = { by: "job", cursor: null };
  let layout = null,
    width = 0,
    palette = null,
    hatch = null;

  function readPalette() {
    palette = {
      ink: css("--ink"),
      soft: css("--soft"),
      line: css("--line"),
      idle: css("--free"),
      card: css("--card"),
      bad: css("--bad"),
      warn: css("--warn"),
      accent: css("--accent"),
    };
    const stamp = document.createElement("canvas"),
      pen = stamp.getContext("2d");
    stamp.width = stamp.height = 6;
    pen.strokeStyle = isDark() ? "rgba(230, 235, 240, .7)" : "rgba(22, 32, 44, .6)";
    pen.lineWidth = 1.4;
    pen.beginPath();
    for (const at of [-6, 0, 6]) {
      pen.moveTo(at - 1, 7);
      pen.lineTo(at + 7, -1);
    }
    pen.stroke();
    hatch = context.createPattern(stamp, "repeat");
  }

  function resize() {
    width = canvas.parentElement.clientWidth;
    layout = layoutTiles(store.nodes, store.types, width);
    const ratio = window.devicePixelRatio || 1;
    canvas.style.height = `${layout.height}px`;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(layout.height * ratio);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    paintAll();
  }

  function paintAll() {
    readPalette();
    context.fillStyle = palette.card;
    context.fillRect(0, 0, width, layout.height);
    const counts = new Map(store.count().types.map((type) => [type.name, type]));
    for (const { type, y } of layout.headings) paintHeading(store.types[type], counts.get(store.types[type]), type, y);
    for (const box of layout.boxes) paintNode(box);
    canvas.dataset.gpus = layout.boxes.reduce((sum, box) => sum + box.gpus, 0);
  }

  function paintHeading(name, count, type, y) {
    context.fillStyle = palette.card;
    context.fillRect(0, y, width, headingHeight);
    context.fillStyle = groupColour(type);
    context.fillRect(0, y + 4, 3, 13);
    context.textBaseline = "middle";
    context.textAlign = "left";
    context.fillStyle = palette.ink;
    context.font = `600 12.5px ${face}`;
    context.fillText(name, 9, y + 11);
    const at = 9 + context.measureText(name).width + 8;
    context.fillStyle = palette.soft;
    context.font = `12px ${face}`;
    context.fillText(`${count.used.toLocaleString("en")} of ${count.all.toLocaleString("en")} GPUs in use`, at, y + 11);
  }

  // Only what changed: nodes, and the numbers above them.
  function paint(touched) {
    if (touched.nodes.size > layout.boxes.length / 2) return paintAll();
    for (const index of touched.nodes) {
      const box = layout.byNode.get(index);
      if (box) paintNode(box);
    }
    if (!touched.nodes.size) return;
    const counts = new Map(store.count().types.map((type) => [type.name, type]));
    for (const { type, y } of layout.headings) paintHeading(store.types[type], counts.get(store.types[type]), type, y);
  }

  function paintNode(box) {
    const node = store.nodes[box.node],
      { tile, step, label } = layout;
    context.fillStyle = palette.card;
    context.fillRect(box.x - 2, box.y - 1, box.wide + 4, box.high + 2);
    if (label) {
      context.fillStyle = node.state === "up" ? palette.soft : palette.bad;
      context.font = `11px ${face}`;
      context.textAlign = "left";
      context.textBaseline = "middle";
      const text = node.state === "up" ? node.name : `${node.name} · ${node.state}`;
      context.fillText(fitted(context, text, Math.max(box.wide, 62)), box.x, box.y + 6);
    }
    for (let place = 0; place < box.gpus; place++) {
      const x = box.x + (place % across) * step,
        y = box.y + label + Math.floor(place / across) * step;
      paintTile(node, place, x, y, tile);
    }
    if (view.cursor && view.cursor.node === box.node) {
      context.strokeStyle = palette.accent;
      context.lineWidth = 2;
      context.strokeRect(box.x - 1, box.y + label - 1, Math.min(across, box.gpus) * step, Math.ceil(box.gpus / across) * step);
    }
  }

  function paintTile(node, place, x, y, tile) {
    const holders = store.holders[node.first + place],
      used = node.utilization?.[place];
    const gone = node.state === "lost" || node.state === "unreachable" || node.state === "backed-off";
    let ground = palette.idle;
    if (view.by === "utilization") {
      ground = used === undefined || used === null ? palette.idle : loadColour(used, isDark());
      context.fillStyle = ground;
      context.fillRect(x, y, tile, tile);
    } else if (!holders.length) {
      context.fillStyle = ground;
      context.fillRect(x, y, tile, tile);
    } else {
      holders.forEach((number, i) => {
        // co-located jobs share the tile
        ground = colourOf(number);
        context.fillStyle = ground;
        context.fillRect(x, y + (tile * i) / holders.length, tile, tile / holders.length - (i + 1 < holders.length ? 1 : 0));
      });
    }
    if (node.state === "drained") {
      context.fillStyle = hatch;
      context.fillRect(x, y, tile, tile);
    }
    if (gone) paintCross(x, y, tile);
    if (tile >= 12 && used && holders.length && !gone && view.by !== "utilization") paintLoad(x, y, tile, used);
    if (tile >= 34) paintText(node, place, holders, used, ground, x, y, tile);
  }

  function colourOf(number) {
    const job = store.jobs.get(number);
    if (view.by === "user") return groupColour(hash(job?.user ?? ""));
    return jobColour(number);
  }

  function paintCross(x, y, tile) {
    context.strokeStyle = palette.bad;
    context.lineWidth = tile >= 12 ? 1.5 : 1;
    context.beginPath();
    context.moveTo(x + 1, y + 1);
    context.lineTo(x + tile - 1, y + tile - 1);
    context.moveTo(x + tile - 1, y + 1);
    context.lineTo(x + 1, y + tile - 1);
    context.stroke();
  }

  function paintLoad(x, y, tile, used) {
    context.fillStyle = "rgba(0, 0, 0, .35)";
    context.fillRect(x + 1, y + tile - 4, tile - 2, 3);
    context.fillStyle = "#ffffff";
    context.fillRect(x + 1, y + tile - 4, (tile - 2) * Math.min(1, used / 100), 3);
  }

  function paintText(node, place, holders, used, ground, x, y, tile) {
    if (!holders.length && view.by !== "utilization") return;
    context.fillStyle = ground.startsWith("#") ? inkOn(ground) : palette.ink;
    context.font = `${tile > 46 ? 11 : 10}px ${face}`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    const name =
      holders.length > 1
        ? `${holders.length} jobs`
        : holders.length
          ? store.jobs.get(holders[0])?.name || `#${holders[0]}`
          : "";
    context.fillText(fitted(context, name, tile - 4), x + tile / 2, y + tile / 2 - (tile >= 44 ? 6 : 2));
    const memory = node.memory_gb?.[place];
    if (tile >= 44 && used !== undefined && used !== null)
      context.fillText(`${Math.round(used)} %`, x + tile / 2, y + tile / 2 + 7, tile - 4);
    else if (tile >= 44 && memory) context.fillText(`${digits(memory)} GB`, x + tile / 2, y + tile / 2 + 7, tile - 4);
  }

  return {
    resize,
    paint,
    paintAll,
    view,
    layout: () => layout,
    colourBy(by) {
      view.by = by;
      paintAll();
    },
    cursor(node) {
      const old = view.cursor;
      view.cursor = node === null ? null : { node };
      for (const box of [old && layout.byNode.get(old.node), layout.byNode.get(node)]) if (box) paintNode(box);
    },
  };
}

function hash(text) {
  let sum = 0;
  for (let i = 0; i < text.length; i++) sum = (sum * 31 + text.charCodeAt(i)) >>> 0;
  return sum;
}

export function fitted(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  let kept = text.length;
  while (kept > 1 && context.measureText(`${text.slice(0, kept)}…`).width > room) kept--;
  return `${text.slice(0, kept)}…`;
}
