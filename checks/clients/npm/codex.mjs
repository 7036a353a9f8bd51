// @openai/codex: a turn of `codex exec`, whose request offers functions, a namespace, a search and
// a freeform patch tool.
import { spawnSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import { assert, run } from "./checks.mjs";

const baseURL = `${process.argv[2]}/v1`;
const entry = {
  slug: "target", display_name: "target", description: "d", supported_reasoning_levels: [],
  shell_type: "shell_command", visibility: "list", supported_in_api: true, priority: 1,
  upgrade: null, base_instructions: "Be brief.", supports_reasoning_summaries: false,
  support_verbosity: false, truncation_policy: { mode: "bytes", limit: 10000 },
  supports_parallel_tool_calls: false, context_window: 30000, experimental_supported_tools: [],
};

function config(home) {
  return [
    'model = "target"', 'model_provider = "local"', 'approval_policy = "never"',
    'sandbox_mode = "read-only"', `model_catalog_json = ${JSON.stringify(join(home, "models.json"))}`,
    "[model_providers.local]", 'name = "local"', `base_url = ${JSON.stringify(baseURL)}`,
    'wire_api = "responses"', "requires_openai_auth = false", "stream_max_retries = 0",
    "request_max_retries = 0",
  ].join("\n");
}

function turn(fields) {
  const home = mkdtempSync(join(homedir(), ".codex-check-"));  // it refuses a folder below /tmp
  try {
    writeFileSync(join(home, "config.toml"), config(home));
    writeFileSync(join(home, "models.json"), JSON.stringify({ models: [{ ...entry, ...fields }] }));
    const command = ["exec", "--skip-git-repo-check", "--json", "say hello"];
    const done = spawnSync("node_modules/.bin/codex", command, {
      cwd: import.meta.dirname, env: { ...process.env, CODEX_HOME: home },
      stdio: ["ignore", "pipe", "pipe"], encoding: "utf8", timeout: 120_000,
    });
    const lines = done.stdout.split("\n").filter((line) => line.startsWith("{"));
    const events = lines.map((line) => JSON.parse(line));
    assert(events.some((event) => event.type === "turn.completed"), [events, done.stderr]);
    assert(events.some((event) => event.item?.type === "agent_message" && event.item.text), events);
  } finally {
    rmSync(home, { recursive: true });
  }
}

await run({
  exec: async () => turn({}),
  "exec with a freeform tool": async () => turn({ apply_patch_tool_type: "freeform" }),
});
