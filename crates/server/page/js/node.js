// The chosen node, beside every view: what it is, what it does, what can be done with it. Without one, the run as a
// whole: its questions, input, error and outputs.

import { cls, html, useEffect, useState } from './dom.js';
import * as commands from './commands.js';
import { Frames } from './frames.js';
import { count, dated, duration, money, text } from './format.js';
import { drawnPath } from './graph.js';
import { nodeStatus, now, runs } from './lists.js';
import { Button, Contained, Empty, Folded, NodeSign, copy } from './parts.js';
import { Question, SteadyQuestions } from './question.js';
import { href, route, setQuery } from './route.js';
import { isLive, isPast, nodesOf } from './session.js';
import { Stream } from './stream.js';
import { Why } from './why.js';

/** Whether a question is shown with the node at this path. @param {Loose} question @param {string} path */
export const asks = ({ task }, path) => task === path || drawnPath(task) === path;

/** The open questions. They stay while there is no server, so that nothing that was written is lost. @param {{ session: Session, questions: Loose[], isLed?: boolean }} _ */
const Questions = ({ session, questions, isLed }) => html`<${SteadyQuestions} ids=${questions.map((one) => one.promptId).join()}>${questions.map((question) => html`<article class="ask" key=${question.promptId}>
  ${isLed && question.task && html`<button type="button" class="link mono" onClick=${() => setQuery({ node: question.task })}>${question.task}</button>`}
  ${isPast(session) ? html`<p>${question.prompt}</p>` : html`<${Contained}><${Question} question=${{ sessionId: session.id, ...question }} /><//>`}
</article>`)}<//>`;

/** @param {{ error: any }} _ */
function ErrorText({ error }) {
  if (!error) return null;
  const { message, code, hint } = typeof error === 'string' ? { message: error, code: '', hint: '' } : error;
  return html`<div class="box-error" role="group" aria-label="Error">
    <p><b>✘ ${message ?? text(error)}</b></p>
    ${hint && html`<p class="hint">${hint}</p>`}
    ${code && html`<p class="mono faint">${code}</p>`}
  </div>`;
}

/** @param {{ session: Session, state: State }} _ */
function Overview({ session, state }) {
  return html`<div class="pane-body">
    <${Questions} session=${session} questions=${state.prompts ?? []} isLed=${true} />
    <${ErrorText} error=${state.error} />
    ${state.ending && html`<p class="hint">${text(state.ending)}</p>`}
    ${state.output !== undefined && html`<section><h3>Output</h3><${Folded} value=${text(state.output)} label="Output" lines=${24} /></section>`}
    ${state.artifacts && html`<section><h3>Files that nodes left</h3><p class="mono file">${state.artifacts}</p></section>`}
    ${state.input !== undefined && html`<section><h3>Input</h3><${Folded} value=${text(state.input)} label="Input" /></section>`}
    ${state.next?.length > 0 && html`<section><h3>In a shell</h3><ul class="shell">${state.next.map((/** @type {Loose} */ one) => html`<li>
      <code>${one.command}</code><button type="button" class="link" onClick=${() => copy(one.command, 'Command')} aria-label=${`Copy ${one.command}`}>copy</button><span class="faint">${one.what}</span>
    </li>`)}</ul></section>`}
    ${state.file && html`<p class="faint mono file">${state.file}</p>`}
    <p class="faint hint-line">Choose a node, or press <kbd>j</kbd>.</p>
  </div>`;
}

/** Why a node did not run, as `show` says it. @type {Record<string, string>} */
const SKIPPED = { when: 'its condition was false', edge: 'no edge into it fired', notSelected: 'not selected by --only', failure: 'a node before it failed, or the flow ended' };

/** The facts of a node. @param {{ session: Session, state: State, node: Loose, drawn: Loose | null | undefined }} _ */
function NodeFacts({ session, state, node, drawn }) {
  const until = isPast(session) ? new Date(state.at).getTime() : now.value;
  const running = node.status === 'running' && node.startedAt ? Math.max(0, until - new Date(node.startedAt).getTime()) : node.durationMs;
  /** @type {any[]} */
  const facts = [
    running !== undefined && ['time', duration(running)],
    node.attempts > 1 && ['attempts', String(node.attempts)],
    node.pass > 1 && ['pass', node.passes ? `${node.pass} of ${node.passes}` : String(node.pass)],
    node.costUsd !== undefined && ['cost', money(node.costUsd)],
    node.tokens > 0 && ['tokens', count(node.tokens)],
    node.by && ['by', node.by],
    node.agent?.model && ['model', node.agent.model],
    node.reused && ['output', 'reused'],
    node.skipped && ['skipped', SKIPPED[node.skipped] ?? text(node.skipped)],
    node.retryAt && ['next attempt', dated(node.retryAt, now.value)],
    drawn?.when && ['when', drawn.when],
  ].filter(Boolean);
  return facts.length ? html`<dl class="facts">${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>` : null;
}

/** @param {{ session: Session, node: Loose, path: string, state: State }} _ */
function NodeActs({ session, node, path, state }) {
  if (!isLive(session)) return null;
  const { id } = session;
  const place = drawnPath(path);
  const canRetry = place === path && !runs(state.session) && !state.session.continuedBy && ['failed', 'cancelled', 'complete'].includes(node.status);
  return html`<div class="acts">
    ${node.status === 'running' && node.agent && html`<${Button} onPress=${() => commands.steer(id, path)}>Steer…<//>`}
    ${node.agent?.doing?.kind === 'listening' && html`<${Button} onPress=${() => commands.close(id, path)}>End it<//>`}
    ${canRetry && html`<${Button} onPress=${() => commands.retry(id, path)}>Retry<//>`}
    ${node.status !== 'pending' && place === path && html`<${Button} onPress=${() => commands.fork(id, path, state.input)}>Fork from here<//>`}
  </div>`;
}

/** The node whose frame has to be chosen before there is a node at this path: `each` of `each/fix`. @param {State} state @param {string} path @returns {string | undefined} */
function withoutFrame(state, path) {
  const parts = path.split('/');
  const ends = parts.slice(1).map((_, at) => at + 1);
  const end = state.nodes[path] ? undefined : ends.find((at) => !parts[at - 1].endsWith(']') && !state.nodes[parts.slice(0, at + 1).join('/')]);
  return end === undefined ? undefined : parts.slice(0, end).join('/');
}

/** What an agent does now, in words. @param {{ agent: Api.PageAgent }} _ */
function Doing({ agent }) {
  if (!agent?.doing || agent.doing.kind === 'ended') return null;
  /** @type {Record<string, string>} */
  const words = { asking: 'asks', thinking: 'thinks', writing: 'writes', using: 'uses', listening: 'listens for messages' };
  const { kind, text: more } = /** @type {Loose} */ (agent.doing);
  return html`<p class="doing"><span class="pulse" aria-hidden="true"></span>${agent.provider ?? 'The agent'} ${words[kind] ?? kind}${more ? html` <span class="mono">${more}</span>` : ''}</p>`;
}

/** @param {{ session: Session, state: State }} _ */
export function NodePane({ session, state }) {
  const path = route.value.query.node ?? '';
  const [wide, setWide] = useState(false);
  // A node within a frame is part of the state while its frame is open.
  useEffect(() => {
    if (path.includes('/')) session.openFrame(path.slice(0, path.lastIndexOf('/')));
  }, [path, session]);
  const graph = session.graph.value;
  if (!path) {
    return html`<aside class="pane" aria-label="The run">
      <header class="pane-head"><h2>The run</h2></header>
      <${Overview} session=${session} state=${state} />
    </aside>`;
  }
  const drawn = graph && !graph.failure ? nodesOf(graph).find((one) => one.path === drawnPath(path)) : null;
  const node = state.nodes[path] ?? state.nodes[drawnPath(path)] ?? drawn ?? null;
  const questions = (state.prompts ?? []).filter((/** @type {Loose} */ one) => asks(one, path));
  const owner = withoutFrame(state, path);
  const hasFrames = !!(node?.frames || drawn?.frames);
  const tab = route.value.query.tab ?? (hasFrames && !path.endsWith(']') ? 'frames' : 'stream');
  const tabs = [...(hasFrames ? [['frames', 'Frames']] : []), ['stream', 'Stream'], ['why', 'Why']];
  const parts = path.split('/');
  return html`<aside class=${cls('pane', wide && 'wide')} aria-label=${`Node ${path}`}>
    <header class="pane-head">
      <div class="pane-title">
        ${node && !owner && html`<${NodeSign} status=${node.status ?? 'pending'} />`}
        <h2>${parts.map((part, at) => html`${at > 0 && html`<span class="faint">/</span>`}${at < parts.length - 1
          ? html`<button type="button" class="link" onClick=${() => setQuery({ node: drawnPath(parts.slice(0, at + 1).join('/')), tab: undefined })}>${part}</button>`
          : part}`)}</h2>
        <span class="grow"></span>
        <button type="button" class="icon" aria-label=${wide ? 'Narrower' : 'Wider'} aria-pressed=${wide} onClick=${() => setWide(!wide)}>⇔</button>
        <button type="button" class="icon" aria-label="Close the node" onClick=${() => setQuery({ node: undefined, tab: undefined, attempt: undefined })}>✕</button>
      </div>
      <p class="faint mono pane-type">${node?.type ?? drawn?.type ?? ''}${drawn?.frames?.how ? ` · ${drawn.frames.how}` : ''}</p>
      ${node && html`<${NodeFacts} session=${session} state=${state} node=${node} drawn=${drawn} />`}
      ${node && html`<${NodeActs} session=${session} node=${node} path=${path} state=${state} />`}
      <nav class="tabs small" aria-label="Of the node">${tabs.map(([name, label]) => html`<a href=${href(route.value.path, { ...route.value.query, tab: name })} aria-current=${tab === name ? 'page' : undefined}>${label}</a>`)}</nav>
    </header>
    <${Questions} session=${session} questions=${questions} />
    ${node && html`<${ErrorText} error=${node.error} />`}
    ${node && html`<${Doing} agent=${node.agent} />`}
    ${!node && !graph
      ? html`<${Empty} title="Reading…" />`
      : owner && tab !== 'why'
      ? html`<p class="hint">It runs in the frames of <b class="mono">${owner}</b>. Choose one:</p><${Frames} key=${owner} session=${session} path=${owner} />`
      : tab === 'frames'
        ? html`<${Frames} key=${path} session=${session} path=${path} />`
        : tab === 'why'
          ? html`<${Why} session=${session} node=${path} />`
          : html`<${Stream} key=${path} session=${session} path=${path} prompts=${state.prompts} isRunning=${nodeStatus(node?.status ?? '').label === 'running'} />`}
  </aside>`;
}
