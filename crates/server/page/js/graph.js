// The graph: the drawing that `inspan graph` makes, with what each node does now. Only what is in sight becomes elements;
// a drawing seen from afar is painted on a canvas.

import { cls, html, useEffect, useLayoutEffect, useMemo, useRef, useSize, useState } from './dom.js';
import { duration, grouped, money } from './format.js';
import { nodeStatus } from './lists.js';
import { AtEnd, Empty, Failure, Loading, NodeSign, Rows } from './parts.js';
import { route, setQuery } from './route.js';
import { base, choose, chosen, moment, nodesOf, useResource } from './session.js';

/** Boxes in sight of which each becomes an element. */
const ELEMENTS = 300;
/** Below this scale no text can be read. */
const READABLE = 0.34;

/** @typedef {{ boxes: any[], arrows: any[], w: number, h: number, counts?: any }} Shapes */

/** @type {WeakMap<Api.Drawing, Shapes>} */
const known = new WeakMap();

/** The drawing as flat lists. @param {Api.Drawing} graph */
export function shapesOf(graph) {
  const all = known.get(graph) ?? shapes(graph);
  known.set(graph, all);
  return all;
}

/** @param {Api.Drawing} graph */
function shapes(graph) {
  /** @type {Shapes} */
  const all = { boxes: [], arrows: [], w: 0, h: 0 };
  /** @param {Api.Group} group @param {string} prefix */
  const walk = (group, prefix) => {
    for (const node of group.nodes) {
      const { x = 0, y = 0, w = 0, h = 0 } = node;
      all.boxes.push({ node, path: node.path, x, y, w, h });
      all.w = Math.max(all.w, x + w);
      all.h = Math.max(all.h, y + h);
      if (node.frames?.body) walk(node.frames.body, `${node.path}/`);
    }
    for (const edge of group.edges) if (edge.points?.length) all.arrows.push(arrow(edge, prefix));
  };
  walk(graph, '');
  return all;
}

/** @param {Api.DrawnEdge} edge @param {string} prefix @returns {Arrow} */
function arrow(edge, prefix) {
  const points = (edge.points ?? []).map(([x, y]) => ({ x, y }));
  let d = `M${points[0].x} ${points[0].y}`;
  for (let at = 1; at < points.length; at += 1) {
    const [a, b] = [points[at - 1], points[at]];
    const middle = (a.y + b.y) / 2;
    const isStraight = Math.abs(a.x - b.x) < 0.05 || Math.abs(a.y - b.y) < 0.05;
    d += isStraight ? `L${b.x} ${b.y}` : `C${a.x} ${middle} ${b.x} ${middle} ${b.x} ${b.y}`;
  }
  const xs = points.map((point) => point.x);
  const ys = points.map((point) => point.y);
  const words = edge.label ?? '';
  return {
    edge,
    place: `${prefix}${edge.from}\n${prefix}${edge.to}\n${edge.on}`,
    d,
    left: Math.min(...xs),
    right: Math.max(...xs) + words.length * 7,
    top: Math.min(...ys),
    bottom: Math.max(...ys),
    label: words && edge.labelAt ? { text: words, ...edge.labelAt } : null,
  };
}

/** @param {Api.DrawnEdge} edge */
function arrowClass(edge) {
  const { fired = 0, skipped = 0 } = edge;
  const isOff = !fired && skipped > 0;
  return cls('arrow', fired > 0 && 'fired', isOff && 'off', edge.maxIterations && 'back');
}

/** Cuts text to a width in pixels, roughly. @param {string} text @param {number} width @param {number} letter */
function cut(text, width, letter) {
  const most = Math.max(3, Math.floor(width / letter));
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

/** What a node did, in a few words. @param {Loose} [node] */
export function facts(node) {
  if (!node) return '';
  const { frames, agent } = node;
  const parts = [];
  if (frames?.total) parts.push(`${(frames.succeeded ?? 0) + (frames.failed ?? 0)} of ${frames.total}${frames.failed ? `, ${frames.failed} failed` : ''}`);
  if (node.pass > 1) parts.push(`pass ${node.pass}`);
  if (!node.runs && node.attempts > (node.pass || 1)) parts.push(`${node.attempts} attempts`);
  if (agent && node.status === 'running') parts.push(agent.doing?.kind ?? 'agent');
  if (node.durationMs !== undefined && node.status !== 'skipped') parts.push(duration(node.durationMs));
  if (node.costUsd) parts.push(money(node.costUsd));
  return parts.join(' · ');
}

/** A node as the state has it; one within frames as the sum over them. @param {Api.DrawnNode} node @param {State} state @param {Sums} sums @returns {Loose} */
const resultOf = (node, state, sums) => state.nodes[node.path] ?? sums[node.path] ?? node;

/** @param {{ box: Box, state: State, sums: Sums, waits: Set<string>, isChosen: boolean }} _ */
function BoxView({ box, state, sums, waits, isChosen }) {
  const result = resultOf(box.node, state, sums);
  const status = nodeStatus(result.status ?? 'pending');
  const body = !!box.node.frames?.body;
  const calls = waits.has(box.path);
  const round = box.node.shape === 'agent' ? 12 : box.node.shape === 'control' ? 3 : 7;
  const more = facts(result);
  const room = Math.floor((box.h - 10) / 17);
  const type = body ? `${box.node.type} · ${box.node.frames?.how ?? ''}` : box.node.type;
  const lines = body ? [type, more] : room >= 3 ? [type, more] : [more || type];
  const x = box.x + 14;
  return html`<g class=${cls('box', `tone-${status.tone}`, `is-${result.status}`, body && 'frames', calls && 'calls', isChosen && 'chosen')}
      data-path=${box.path}
      onClick=${() => choose(box.path)}>
    <title>${[box.path, type, calls ? 'waits for you' : status.label, more, result.error && String(result.error.message ?? result.error)].filter(Boolean).join('\n')}</title>
    <rect class="face" x=${box.x} y=${box.y} width=${box.w} height=${box.h} rx=${round} />
    <text class="id" x=${x} y=${box.y + 19}><tspan class="glyph">${calls ? '?' : status.glyph}</tspan> ${cut(box.node.id, box.w - 42, 7.6)}</text>
    ${lines.filter(Boolean).slice(0, body ? 2 : Math.max(1, room - 1)).map((line, at) => html`<text class="fact" x=${x} y=${box.y + 36 + at * 17}>${cut(line, box.w - 22, 6.3)}</text>`)}
  </g>`;
}

/** @param {{ arrow: Arrow }} _ */
function ArrowView({ arrow: { edge, d, label } }) {
  const name = arrowClass(edge);
  return html`<g class=${name}>
    <path d=${d} marker-end=${name.includes('off') ? 'url(#tip-off)' : 'url(#tip)'} />
    ${label && html`<text class="label" x=${label.x} y=${label.y + 4}>${(edge.fired ?? 0) > 1 ? `${edge.fired}× ` : ''}${label.text}<title>${edge.when ?? ''}</title></text>`}
  </g>`;
}

/** What is within a part of the drawing. @param {{ x0: number, y0: number, x1: number, y1: number }} area @param {Shapes} all */
function within(area, all) {
  const boxes = all.boxes.filter((box) => box.x < area.x1 && box.x + box.w > area.x0 && box.y < area.y1 && box.y + box.h > area.y0);
  const arrows = boxes.length > ELEMENTS ? [] : all.arrows.filter((one) => one.left < area.x1 && one.right > area.x0 && one.top < area.y1 && one.bottom > area.y0);
  return { boxes, arrows };
}

/** The drawing from afar. @param {HTMLCanvasElement} canvas @param {Shapes} all @param {View} view @param {State} state @param {Sums} sums @param {Set<string>} waits */
function paint(canvas, all, view, state, sums, waits) {
  const scale = devicePixelRatio;
  const [w, h] = [canvas.clientWidth, canvas.clientHeight];
  if (canvas.width !== Math.round(w * scale)) canvas.width = Math.round(w * scale);
  if (canvas.height !== Math.round(h * scale)) canvas.height = Math.round(h * scale);
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext('2d'));
  const style = getComputedStyle(canvas);
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.clearRect(0, 0, canvas.width, canvas.height);
  context.setTransform(view.k * scale, 0, 0, view.k * scale, view.x * scale, view.y * scale);
  /** @type {Map<string, Path2D>} */
  const tones = new Map();
  const bodies = new Path2D();
  for (const box of all.boxes) {
    if (box.node.frames?.body) {
      bodies.rect(box.x, box.y, box.w, box.h);
      continue;
    }
    const tone = waits.has(box.path) ? 'call' : nodeStatus(resultOf(box.node, state, sums).status ?? 'pending').tone;
    const path = tones.get(tone) ?? new Path2D();
    path.rect(box.x, box.y, box.w, box.h);
    tones.set(tone, path);
  }
  context.lineWidth = 1 / view.k;
  context.strokeStyle = style.getPropertyValue('--line-strong');
  context.stroke(bodies);
  for (const [tone, path] of tones) {
    context.fillStyle = style.getPropertyValue(`--${tone}`) || style.getPropertyValue('--faint');
    context.globalAlpha = tone === 'faint' ? 0.35 : 1;
    context.fill(path);
  }
  context.globalAlpha = 1;
}

/** The view that shows all, or as much of it as can be read. @param {Shapes} all @param {Size} size @param {number} least @returns {View} */
function fit(all, size, least) {
  const k = Math.max(least, Math.min(1.1, (size.w - 32) / Math.max(1, all.w), (size.h - 32) / Math.max(1, all.h)));
  return { k, x: Math.max(16, (size.w - all.w * k) / 2), y: all.h * k < size.h ? Math.max(16, (size.h - all.h * k) / 2) : 16 };
}

/** Moves a view so that a box is in sight. @param {View} view @param {Box} box @param {Size} size */
function toward(view, box, size) {
  const [left, top] = [box.x * view.k + view.x, box.y * view.k + view.y];
  const [right, bottom] = [left + box.w * view.k, top + box.h * view.k];
  if (left >= 8 && top >= 8 && right <= size.w - 8 && bottom <= size.h - 8) return view;
  const isTall = box.h * view.k > size.h;
  return { ...view, x: size.w / 2 - (box.x + box.w / 2) * view.k, y: isTall ? 24 - box.y * view.k : size.h / 2 - (box.y + box.h / 2) * view.k };
}

/** @param {{ all: Shapes, state: State, sums: Sums, revision: number }} _ */
function Drawing({ all, state, sums, revision }) {
  const ref = useRef((null));
  const canvas = useRef((null));
  const size = useSize(ref);
  const [view, setView] = useState(/** @type {{ x: number, y: number, k: number } | null} */ (null));
  const node = chosen.value;
  const prompts = state.prompts;
  const waits = useMemo(() => new Set(/** @type {string[]} */ ((prompts ?? []).map((/** @type {Loose} */ one) => drawnPath(one.task)))), [prompts]);
  useLayoutEffect(() => {
    if (!size.w) return;
    setView((old) => {
      if (old) return old;
      const first = fit(all, size, READABLE + 0.26);
      const lively = all.boxes.find((box) => box.path === drawnPath(node)) ?? all.boxes.find((box) => waits.has(box.path) || ['running', 'failed'].includes(resultOf(box.node, state, sums).status));
      return lively ? toward(first, lively, size) : first;
    });
  }, [size.w > 0, all]);
  useEffect(() => {
    const box = all.boxes.find((one) => one.path === drawnPath(node));
    if (box && size.w) setView((old) => old && toward(old, box, size));
  }, [node]);
  useEffect(() => {
    const element = ref.current;
    /** @param {WheelEvent} event */
    const wheel = (event) => {
      event.preventDefault();
      const isZoom = event.ctrlKey || event.metaKey;
      const box = element.getBoundingClientRect();
      setView((old) => old && (isZoom
        ? zoom(old, Math.exp(-event.deltaY / 240), event.clientX - box.left, event.clientY - box.top)
        : { ...old, x: old.x - event.deltaX, y: old.y - event.deltaY }));
    };
    element.addEventListener('wheel', wheel, { passive: false });
    return () => element.removeEventListener('wheel', wheel);
  }, []);
  const drag = useDrag((dx, dy) => setView((old) => old && { ...old, x: old.x + dx, y: old.y + dy }));

  const shown = view ?? { x: 0, y: 0, k: 1 };
  // What is in sight, and a third of it more on each side: so moving a little makes no new elements.
  const step = Math.max(size.w, size.h, 400) / shown.k / 3;
  const [left, top] = [Math.floor(-shown.x / shown.k / step), Math.floor(-shown.y / shown.k / step)];
  const seen = useMemo(
    () => within({ x0: (left - 1) * step, y0: (top - 1) * step, x1: (left + 5) * step, y1: (top + 5) * step }, all),
    [left, top, step, all],
  );
  const isFar = seen.boxes.length > ELEMENTS || shown.k < READABLE * 0.5;
  const content = useMemo(
    () => (isFar || !view ? null : html`
      ${seen.boxes.filter((box) => box.node.frames?.body).map((box) => html`<${BoxView} key=${box.path} box=${box} state=${state} sums=${sums} waits=${waits} isChosen=${box.path === drawnPath(node)} />`)}
      ${seen.arrows.map((one) => html`<${ArrowView} arrow=${one} />`)}
      ${seen.boxes.filter((box) => !box.node.frames?.body).map((box) => html`<${BoxView} key=${box.path} box=${box} state=${state} sums=${sums} waits=${waits} isChosen=${box.path === drawnPath(node)} />`)}`),
    [seen, isFar, !view, state, sums, revision, waits, node],
  );
  useLayoutEffect(() => {
    if (isFar && canvas.current && view) paint(canvas.current, all, view, state, sums, waits);
  }, [isFar, view, revision, state, sums, size]);
  /** @param {number} by */
  const near = (by) => setView((old) => old && zoom(old, by, size.w / 2, size.h / 2));
  return html`<div class="drawing" ref=${ref} ...${drag} role="region" aria-label="The graph of the run">
    ${isFar && html`<canvas ref=${canvas} aria-hidden="true" onClick=${(event) => {
      const [x, y] = [(event.offsetX - shown.x) / shown.k, (event.offsetY - shown.y) / shown.k];
      const hit = all.boxes.findLast((box) => x >= box.x && x <= box.x + box.w && y >= box.y && y <= box.y + box.h);
      if (hit) choose(hit.path);
    }}></canvas>`}
    <svg class="drawing-svg" width="100%" height="100%">
      <defs>
        <marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" markerUnits="userSpaceOnUse" orient="auto"><path class="tip" d="M0 0L10 5L0 10z" /></marker>
        <marker id="tip-off" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" markerUnits="userSpaceOnUse" orient="auto"><path class="tip-off" d="M0 0L10 5L0 10z" /></marker>
      </defs>
      <g transform=${`translate(${shown.x} ${shown.y}) scale(${shown.k})`}>${content}</g>
    </svg>
    <div class="zoom">
      <button type="button" class="icon" aria-label="Closer" onClick=${() => near(1.3)}>+</button>
      <button type="button" class="icon" aria-label="Farther" onClick=${() => near(1 / 1.3)}>−</button>
      <button type="button" class="icon" aria-label="Show all" title="Show all" onClick=${() => setView(fit(all, size, 0.005))}>⤢</button>
    </div>
  </div>`;
}

/** The place in the drawing of a node within frames: `each[3]/fix` is drawn as `each/fix`. @param {string} [path] */
export const drawnPath = (path) => (path ?? '').replace(/\[\d+\]/g, '').replace(/#\d+/g, '');

/** @param {View} view @param {number} by @param {number} x @param {number} y */
function zoom(view, by, x, y) {
  const k = Math.min(2.5, Math.max(0.004, view.k * by));
  return { k, x: x - ((x - view.x) / view.k) * k, y: y - ((y - view.y) / view.k) * k };
}

/** Moving by a pointer. @param {(dx: number, dy: number) => void} move */
function useDrag(move) {
  const at = useRef(/** @type {{ x: number, y: number, far: boolean } | null} */ (null));
  return {
    /** @param {PointerEvent & { target: Element }} event */
    onPointerDown: (event) => {
      if (event.button === 0 && !event.target.closest('button')) at.current = { x: event.clientX, y: event.clientY, far: false };
    },
    /** @param {PointerEvent & { currentTarget: Element }} event */
    onPointerMove: (event) => {
      const last = at.current;
      if (!last) return;
      const [dx, dy] = [event.clientX - last.x, event.clientY - last.y];
      if (!last.far && Math.hypot(dx, dy) < 4) return;
      if (!last.far) event.currentTarget.setPointerCapture(event.pointerId);
      at.current = { x: event.clientX, y: event.clientY, far: true };
      move(dx, dy);
    },
    onPointerUp: () => {
      at.current = null;
    },
    onPointerCancel: () => {
      at.current = null;
    },
  };
}

/** How many nodes have each status, with its sign: the legend. @param {{ state: State }} _ */
function Legend({ state }) {
  const found = Object.entries(state.totals?.nodes ?? {}).filter(([, n]) => n > 0);
  return html`<div class="legend">${found.map(([status, n]) => html`<span><${NodeSign} status=${status} /> <b class="num">${grouped(n)}</b></span>`)}</div>`;
}

/** The nodes as a list: what a narrow screen shows, and a filter finds. @param {{ graph: Api.Drawing, state: State, sums: Sums }} _ */
function NodeList({ graph, state, sums }) {
  const all = useMemo(() => nodesOf(graph), [graph]);
  const words = (route.value.query.q ?? '').toLowerCase();
  const found = all.filter((node) => `${node.path} ${node.type} ${resultOf(node, state, sums).status ?? ''}`.toLowerCase().includes(words));
  const waits = new Set((state.prompts ?? []).map((/** @type {Loose} */ one) => drawnPath(one.task)));
  const node = drawnPath(chosen.value);
  return html`<${Rows} class="nodes" label="Nodes" total=${found.length} height=${40} show=${found.findIndex((one) => one.path === node)}
    row=${(at) => {
      const one = found[at];
      const result = resultOf(one, state, sums);
      return html`<div role="listitem" key=${one.path}><button type="button" class=${cls('node-row', one.path === node && 'chosen', waits.has(one.path) && 'calls')} aria-pressed=${one.path === node} onClick=${() => choose(one.path)} style=${{ paddingInlineStart: `${12 + one.depth * 20}px` }}>
        <${NodeSign} status=${result.status ?? 'pending'} bare=${true} />
        <span class="node-id">${one.id}</span><span class="node-type faint">${one.type}</span><span class="grow"></span>
        <span class="num faint">${waits.has(one.path) ? 'waits for you' : facts(result)}</span>
      </button></div>`;
    }} />`;
}

/** @param {{ session: Session, state: State }} _ */
export function GraphView({ session, state }) {
  const graph = session.graph.value;
  if (!graph) return html`<${Loading} what="the graph" />`;
  if (graph.failure) return html`<${Failure} error=${graph.failure} retry=${session.loadGraph} />`;
  const all = shapesOf(graph);
  if (!all.boxes.length) return html`<${Empty} title="The flow has no nodes" />`;
  withEdges(all, state.edges);
  const hasFrames = graph.nodes.some((/** @type {Api.DrawnNode} */ node) => node.frames?.body);
  const View = hasFrames ? WithSums : GraphOf;
  return html`<${View} session=${session} state=${state} all=${all} sums=${NONE} />`;
}

/** @typedef {{ session: Session, state: State, all: Shapes, sums: Sums }} Graphed */

/** @type {Sums} */
const NONE = {};

/** The nodes within frames change with the state, which does not have them. @param {Graphed} _ */
function WithSums({ session, state, all }) {
  const { at, tick } = moment(session);
  const { data } = useResource(`${base(session.id)}/sums`, { at }, tick);
  return html`<${GraphOf} session=${session} state=${state} all=${all} sums=${data ?? NONE} />`;
}

/** @param {Graphed} _ */
function GraphOf({ session, state, all, sums }) {
  const graph = session.graph.value;
  const { as, q } = route.value.query;
  const isList = as ? as === 'list' : q !== undefined || innerWidth < 640;
  return html`<div class="graph">
    <div class="tools">
      <input type="search" class="filter" data-filter value=${q ?? ''} placeholder="Filter  /" aria-label="Filter nodes by name, type or status" onInput=${(event) => setQuery({ q: event.target.value, as: event.target.value ? 'list' : undefined })} />
      <${Legend} state=${state} />
      <span class="grow"></span>
      <div class="switch" role="group" aria-label="Shown as">
        <button type="button" aria-pressed=${!isList} onClick=${() => setQuery({ as: 'drawing', q: undefined })}>Drawing</button>
        <button type="button" aria-pressed=${isList} onClick=${() => setQuery({ as: 'list' })}>List</button>
      </div>
    </div>
    ${sums !== NONE && html`<${AtEnd} session=${session} what="the state within frames" />`}
    ${isList
      ? html`<${NodeList} graph=${graph} state=${state} sums=${sums} />`
      : html`<${Drawing} all=${all} state=${state} sums=${sums} revision=${session.revision.value} />`}
  </div>`;
}

/** The counts of edges in a state; an edge that it does not name did nothing. @param {Shapes} all @param {Api.PageEdge[]} counts */
function withEdges(all, counts) {
  if (!counts || all.counts === counts) return;
  all.counts = counts;
  const found = new Map(counts.map((one) => [`${one.from}\n${one.to}\n${one.on}`, one]));
  for (const { edge, place } of all.arrows) {
    const { fired = 0, skipped = 0 } = found.get(place) ?? {};
    Object.assign(edge, { fired, skipped });
  }
}
