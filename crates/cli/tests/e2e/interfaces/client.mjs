// An editor made of the public TypeScript SDK of the Agent Client Protocol: it sends prompts and prints what comes back.
// Usage: node client.mjs SDK FOLDER new|SESSION PROMPT… -- COMMAND ARGUMENT…
import { spawn } from "node:child_process";
import { Readable, Writable } from "node:stream";

const [sdk, folder, load, ...rest] = process.argv.slice(2);
const at = rest.indexOf("--");
const [prompts, [command, ...args]] = [rest.slice(0, at), rest.slice(at + 1)];
const acp = await import(sdk);
const agent = spawn(command, args, { stdio: ["pipe", "pipe", "inherit"] });
const seen = { updates: [], questions: [], stops: [], text: "" };

const client = acp
  .client()
  .onRequest("session/request_permission", ({ params: { toolCall, options } }) => {
    seen.questions.push([toolCall.title, options.map((option) => option.optionId)]);
    return { outcome: { outcome: "selected", optionId: options[0].optionId } };
  })
  .onNotification("session/update", ({ params: { update } }) => {
    seen.updates.push(update.sessionUpdate);
    if (update.sessionUpdate === "agent_message_chunk") seen.text += update.content.text;
  });

const stream = acp.ndJsonStream(Writable.toWeb(agent.stdin), Readable.toWeb(agent.stdout));
const { agent: connection } = client.connect(stream);
const greeted = await connection.request("initialize", { protocolVersion: acp.PROTOCOL_VERSION, clientCapabilities: {} });
const { sessionId } = load === "new" ? await connection.request("session/new", { cwd: folder, mcpServers: [] }) : { sessionId: load };
for (const text of prompts) {
  // A person reads what is asked before the next prompt.
  if (seen.stops.length > 0) await new Promise((read) => setTimeout(read, 700));
  const { stopReason } = await connection.request("session/prompt", { sessionId, prompt: [{ type: "text", text }] });
  seen.stops.push(stopReason);
}
const live = seen.updates.length;
await connection.request("session/load", { sessionId, cwd: folder, mcpServers: [] });
console.log(JSON.stringify({ ...seen, agent: greeted.agentInfo?.name, sessionId, live, loaded: seen.updates.length > live }));
agent.stdin.end();
agent.on("exit", (code) => process.exit(code ?? 1));
