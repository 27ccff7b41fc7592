// OpenCode without a model: loads the plugin that agentbus setup has written, and calls it as OpenCode 1 does.
import { existsSync } from "node:fs"
import { createInterface } from "node:readline"
import { pathToFileURL } from "node:url"

const path = `${process.cwd()}/.opencode/plugins/agentbus.js`
let stops = []
const client = { session: { promptAsync: async ({ body }) => void stops.push(...body.parts.map((part) => part.text)) } }
const plugin = existsSync(path) ? (await import(pathToFileURL(path))).default : undefined
const hooks = plugin ? await plugin.server({ client, directory: process.cwd() }) : {}

for await (const line of createInterface({ input: process.stdin })) {
  const { event, input } = JSON.parse(line)
  const sessionID = input.session_id
  const context = []
  stops = []
  if (event === "chat.message") {
    const output = { message: {}, parts: [{ type: "text", text: input.prompt }] }
    await hooks["chat.message"]?.({ sessionID }, output)
    const [part] = output.parts
    if (part.text !== input.prompt) context.push(part.text.slice(input.prompt.length))
  } else if (event === "tool.execute.before") {
    await hooks["tool.execute.before"]?.({ tool: "bash", sessionID, callID: "1" }, { args: {} })
  } else if (event === "tool.execute.after") {
    const output = { title: "", output: "done", metadata: {} }
    await hooks["tool.execute.after"]?.({ tool: "bash", sessionID, callID: "1", args: {} }, output)
    if (output.output !== "done") context.push(output.output.slice(4))
  } else {
    await hooks.event?.({ event: { type: event, properties: { sessionID, info: { id: sessionID } } } })
  }
  const answer = { context, stop: stops, broken: [], killed: 0, hooks: Object.keys(hooks).length }
  console.log(JSON.stringify(answer))
}
