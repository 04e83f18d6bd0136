// The timeline: a bar for each attempt, turns and tool calls within it, waits. Times in which everything waited are
// compressed.

import { cls, html, useMemo, useRef, useSize } from './dom.js';
import { clockMs, duration, plural } from './format.js';
import { nodeStatus, runs, took } from './lists.js';
import { AtEnd, Empty, Failure, Loading, Rows } from './parts.js';
import { base, choose, chosen, moment, useResource } from './session.js';
import { route, setQuery } from './route.js';

/** How a status of an attempt is shown that no node has. */
/** @type {Record<string, string>} */
const ALIKE = { interrupted: 'cancelled', limited: 'waiting', passedOn: 'failed' };
/** Waits in words. @type {Record<string, string>} */
const WAITS = { person: 'a person', limit: 'a usage limit', retry: 'the next attempt', paused: 'paused', stopped: 'no process', idle: 'nothing ran' };

/**
 * Where a time is on the line: gaps take a fixed part of it.
 * @param {Api.Timeline} timeline @param {number} width @returns {Line}
 */
function scale(timeline, width) {
  /** @param {string} at */
  const ms = (at) => new Date(at).getTime();
  const from = ms(timeline.from ?? '');
  const to = Math.max(from + 1, ms(timeline.to ?? ''));
  const gaps = (timeline.gaps ?? []).map((gap) => ({ from: ms(gap.from), to: ms(gap.to), kind: gap.kind }));
  const waited = gaps.reduce((sum, gap) => sum + gap.to - gap.from, 0);
  const worked = Math.max(1, to - from - waited);
  // Gaps that are short beside the work keep their length.
  const cut = gaps.filter((gap) => (gap.to - gap.from) / worked > 0.06).slice(0, 40);
  const gapWidth = Math.min(28, (width * 0.4) / Math.max(1, cut.length));
  const kept = to - from - cut.reduce((sum, gap) => sum + gap.to - gap.from, 0);
  const perMs = Math.max(1, width - cut.length * gapWidth) / Math.max(1, kept);
  /** @param {number} time */
  const place = (time) => {
    let x = (time - from) * perMs;
    for (const gap of cut) {
      if (time <= gap.from) break;
      const within = Math.min(time, gap.to) - gap.from;
      x += (within / (gap.to - gap.from)) * gapWidth - within * perMs;
    }
    return x;
  };
  return { x: (at) => (at ? place(ms(at)) : width), place, cut, from, to, gapWidth };
}

/** Times written above the line. @param {Line} line @param {number} width */
function ticks(line, width) {
  const steps = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000, 1_800_000, 3_600_000, 7_200_000, 21_600_000, 86_400_000];
  const span = line.to - line.from;
  const step = steps.find((one) => span / one <= Math.max(2, width / 110)) ?? 604_800_000;
  const found = [];
  let last = -100;
  for (let time = 0; time <= span && found.length < 60; time += step) {
    const x = line.place(line.from + time);
    if (x - last < 64 || x > width - 30) continue;
    last = x;
    found.push({ x, text: time === 0 ? '0' : duration(time) });
  }
  return found;
}

/** @param {{ row: Api.TimelineRow, line: Line, isCritical: boolean, isChosen: boolean }} _ */
function Row({ row, line, isCritical, isChosen }) {
  /** @param {{ from: string, to?: string | null }} one */
  const span = (one, least = 2) => {
    const left = line.x(one.from);
    return { left: `${left}px`, width: `${Math.max(least, line.x(one.to) - left)}px` };
  };
  return html`<div class=${cls('tl-row', isChosen && 'chosen')} role="listitem">
    <button type="button" class="tl-name" onClick=${() => choose(row.path)} aria-pressed=${isChosen} title=${row.path}>
      ${isCritical && html`<span class="critical" title="on the critical path">◆<span class="sr"> on the critical path</span></span>`}<span>${row.path}</span></button>
    <div class="tl-line" onClick=${() => choose(row.path)}>
      ${row.bars.map((bar) => {
        const status = nodeStatus(ALIKE[bar.status] ?? bar.status);
        const long = bar.to ? new Date(bar.to).getTime() - new Date(bar.from).getTime() : undefined;
        return html`<i class=${cls('tl-bar', `tone-${status.tone}`, isCritical && 'on-path', !bar.to && 'open')} style=${span(bar, 4)} title=${`attempt ${bar.attempt}${bar.pass > 1 ? `, pass ${bar.pass}` : ''}: ${status.label}\n${clockMs(bar.from)} ${duration(long)}`}><b class="glyph">${status.glyph}</b></i>
          ${(bar.turns ?? []).map((turn) => html`<i class="tl-turn" style=${span(turn)}></i>`)}
          ${(bar.tools ?? []).map((tool) => html`<i class=${cls('tl-tool', tool.ok === false && 'bad')} style=${span(tool)} title=${`${tool.name} ${tool.to ? duration(new Date(tool.to).getTime() - new Date(tool.from).getTime()) : 'running'}`}></i>`)}`;
      })}
      ${row.waits.map((wait) => html`<i class=${`tl-wait ${wait.kind}`} style=${span(wait)} title=${`waits: ${WAITS[wait.kind] ?? wait.kind}\n${wait.text ?? ''}`}></i>`)}
    </div>
  </div>`;
}

/** @param {{ session: Session }} _ */
export function Timeline({ session }) {
  const ref = useRef((null));
  const size = useSize(ref);
  const { at, tick } = moment(session);
  const { data, error, reload } = /** @type {Resource<Api.Timeline>} */ (useResource(`${base(session.id)}/timeline`, { at }, tick));
  const entry = session.live.value?.session;
  const words = (route.value.query.q ?? '').toLowerCase();
  const name = size.w < 560 ? 104 : 200;
  const width = Math.max(80, size.w - name - 24);
  const line = useMemo(() => (data?.from ? scale(data, width) : null), [data, width]);
  const critical = useMemo(() => new Set(data?.criticalPath ?? []), [data]);
  const rows = useMemo(() => (data?.rows ?? []).filter((row) => row.path.toLowerCase().includes(words)), [data, words]);
  const found = chosen.value ? rows.findIndex((row) => row.path === chosen.value) : -1;
  return html`<div class="timeline" ref=${ref} style=${{ '--name': `${name}px` }}>
    ${error && !data
      ? html`<${Failure} error=${error} retry=${reload} />`
      : !data
        ? html`<${Loading} what="the timeline" />`
        : !line
          ? html`<${Empty} title="Nothing has run yet" />`
          : html`<div class="tools">
              <input type="search" class="filter" data-filter value=${words} placeholder="Filter  /" aria-label="Filter rows by node" onInput=${(event) => setQuery({ q: event.target.value })} />
              <span class="faint">${duration(!at && entry && runs(entry) ? took(entry) : (data.durationMs ?? line.to - line.from))} in all${data.omitted ? `, ${plural(data.omitted, 'row')} left out` : ''}</span><${AtEnd} session=${session} /><span class="grow"></span>
              <span class="key"><i class="tl-bar key-path"></i> critical path</span><span class="key"><i class="tl-tool"></i> tool call</span><span class="key"><i class="tl-wait person"></i> waits for a person</span><span class="key"><i class="tl-cut"></i> time cut out</span>
            </div>
            <div class="tl-head" aria-hidden="true">${ticks(line, width).map((one) => html`<span style=${{ left: `${one.x + name}px` }}>${one.text}</span>`)}</div>
            <div class="tl-back" aria-hidden="true">${line.cut.map((gap) => html`<i class="tl-cut" style=${{ left: `${line.place(gap.from) + name}px`, width: `${line.gapWidth}px` }} title=${`${WAITS[gap.kind] ?? gap.kind}: ${duration(gap.to - gap.from)}`}><b>${duration(gap.to - gap.from)}</b></i>`)}</div>
            <${Rows} class="tl-rows" label="Timeline of the nodes" total=${rows.length} height=${28} show=${found}
              row=${(index) => html`<${Row} key=${rows[index].path} row=${rows[index]} line=${line} isCritical=${critical.has(rows[index].path)} isChosen=${rows[index].path === chosen.value} />`} />`}
  </div>`;
}
