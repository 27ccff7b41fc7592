// agentbus in OpenCode 1 (server) and 2 (setup): runs `agentbus hook EVENT --client opencode` with JSON on standard input.
// The hook prints {"additionalContext"} (shown to the model) or {"decision": "block", "reason"}, or nothing. A hook that
// fails, or that takes too long, changes nothing.
import { spawn } from "node:child_process"

const COMMAND = /* command */ ["agentbus"]
const TIMEOUT = 10_000
const LIMIT = 1_000_000

function hook(event, input, cwd) {
  return new Promise((resolve) => {
    let output = ""
    let child
    try {
      const [program, ...first] = COMMAND
      const options = /* options */ []
      child = spawn(program, [...first, "hook", event, "--client", "opencode", ...options], {
        cwd: cwd || process.cwd(),
        stdio: ["pipe", "pipe", "ignore"],
        timeout: TIMEOUT,
      })
    } catch {
      return resolve({})
    }
    child.on("error", () => resolve({}))
    child.stdin.on("error", () => {})
    child.stdout.on("data", (data) => {
      if (output.length < LIMIT) output += data
    })
    child.on("close", (code) => {
      try {
        const answer = code === 0 && output.trim() ? JSON.parse(output) : {}
        resolve(answer && typeof answer === "object" ? answer : {})
      } catch {
        resolve({})
      }
    })
    child.stdin.end(JSON.stringify({ ...input, cwd: cwd || process.cwd() }))
  })
}

// One object for both versions: sessions that were seen, and those of subagents, which have no mail of their own.
function bus() {
  const started = new Set()
  const children = new Set()
  const ask = (event, name, session, cwd, more = {}) =>
    children.has(session) || !session
      ? Promise.resolve({})
      : hook(event, { hook_event_name: name, session_id: session, ...more }, cwd)
  return {
    child: (session) => children.add(session),
    async prompt(session, cwd, prompt) {
      const texts = []
      if (!started.has(session)) {
        started.add(session)
        texts.push((await ask("session-start", "session.start", session, cwd)).additionalContext)
      }
      texts.push((await ask("prompt", "chat.message", session, cwd, { prompt })).additionalContext)
      return texts.filter((text) => typeof text === "string" && text).join("\n\n")
    },
    async before(session, cwd, tool) {
      const answer = await ask("before-tool", "tool.execute.before", session, cwd, { tool_name: tool })
      if (answer.decision === "block") throw new Error(String(answer.reason ?? "refused by agentbus"))
    },
    async after(session, cwd, tool) {
      const answer = await ask("after-tool", "tool.execute.after", session, cwd, { tool_name: tool })
      return typeof answer.additionalContext === "string" ? answer.additionalContext : ""
    },
    async stop(session, cwd) {
      const answer = await ask("stop", "session.idle", session, cwd)
      return answer.decision === "block" && typeof answer.reason === "string" ? answer.reason : ""
    },
    async end(session, cwd) {
      started.delete(session)
      await ask("session-end", "session.deleted", session, cwd)
    },
  }
}

function note(result, text) {
  if (!result || !text) return
  if (Array.isArray(result.content)) result.content.push({ type: "text", text })
  else if (typeof result.content === "string") result.content += `\n\n${text}`
  if (typeof result.output === "string") result.output += `\n\n${text}`
}

async function server({ client, directory }) {
  const mail = bus()
  return {
    event: async ({ event }) => {
      const properties = event?.properties ?? {}
      const session = properties.sessionID ?? properties.info?.id
      if (event?.type === "session.created" && properties.info?.parentID) mail.child(session)
      if (event?.type === "session.deleted") await mail.end(session, directory)
      if (event?.type !== "session.idle") return
      const reason = await mail.stop(session, directory)
      if (!reason) return
      const send = client.session.promptAsync ?? client.session.prompt
      const body = { parts: [{ type: "text", text: reason }] }
      Promise.resolve(send.call(client.session, { path: { id: session }, body })).catch(() => {})
    },
    "chat.message": async (input, output) => {
      const part = output?.parts?.find((one) => one.type === "text" && typeof one.text === "string")
      if (!part) return
      const text = await mail.prompt(input.sessionID, directory, part.text)
      if (text) part.text += `\n\n${text}`
    },
    "tool.execute.before": async (input) => mail.before(input.sessionID, directory, input.tool),
    "tool.execute.after": async (input, output) => note(output, await mail.after(input.sessionID, directory, input.tool)),
  }
}

async function setup(ctx) {
  const mail = bus()
  const places = new Map()
  // The service runs in the home directory: the project is the directory of the session.
  const place = async (session) => {
    if (!places.has(session)) {
      let found
      try {
        const answer = await ctx.session.get({ sessionID: session })
        found = answer?.data ?? answer
      } catch {}
      if (found?.parentID) mail.child(session)
      places.set(session, found?.location?.directory ?? ctx.location?.directory)
    }
    return places.get(session)
  }
  await ctx.session.hook("prompt", async (event) => {
    if (typeof event.prompt?.text !== "string") return
    const text = await mail.prompt(event.sessionID, await place(event.sessionID), event.prompt.text)
    if (text) event.prompt.text += `\n\n${text}`
  })
  await ctx.tool.hook("execute.before", async (event) =>
    mail.before(event.sessionID, await place(event.sessionID), event.tool),
  )
  await ctx.tool.hook("execute.after", async (event) =>
    note(event.result, await mail.after(event.sessionID, await place(event.sessionID), event.tool)),
  )
  const events = ctx.event.subscribe()[Symbol.asyncIterator]()
  const listen = async () => {
    for (;;) {
      const { value, done } = await events.next()
      if (done) return
      const session = value?.data?.sessionID
      if (value?.type === "session.deleted") {
        await mail.end(session, places.get(session))
        places.delete(session)
      }
      if (value?.type !== "session.execution.succeeded") continue
      const reason = await mail.stop(session, await place(session))
      if (reason) await ctx.session.synthetic({ sessionID: session, text: reason })
    }
  }
  listen().catch(() => {})
  return () => void events.return?.()
}

export default { id: "agentbus", server, setup }
