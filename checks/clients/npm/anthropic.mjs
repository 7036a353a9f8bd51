// @anthropic-ai/sdk for Node: messages, streams, tools, counts and the tool runner.
import Anthropic from "@anthropic-ai/sdk";
import { betaZodTool } from "@anthropic-ai/sdk/helpers/beta/zod";
import { z } from "zod";
import { assert, assertArguments, messages, run, tool } from "./checks.mjs";

const client = new Anthropic({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0 });
const model = "target";
const offered = {
  name: "get_weather",
  description: "The weather.",
  input_schema: tool.function.parameters,
  strict: true,
};
const withTool = {
  model, messages, max_tokens: 200, tools: [offered], tool_choice: { type: "any" },
};

await run({
  create: async () => {
    const answer = await client.messages.create({ model, messages, max_tokens: 8 });
    assert(answer.content[0].text, answer);
  },
  stream: async () => {
    const stream = client.messages.stream({ model, messages, max_tokens: 8 });
    let text = "";
    stream.on("text", (piece) => (text += piece));
    const final = await stream.finalMessage();
    assert(text && text === final.content[0].text && final.usage.output_tokens > 0, final);
  },
  "count tokens": async () => {
    const counted = await client.messages.countTokens({ model, messages });
    assert(counted.input_tokens > 0, counted);
  },
  tools: async () => {
    const answer = await client.messages.create(withTool);
    assertArguments(answer.content[0].input);
  },
  "tools streamed": async () => {
    const answer = await client.messages.stream(withTool).finalMessage();
    assertArguments(answer.content[0].input);
  },
  "tool runner": async () => {
    const runnable = betaZodTool({
      name: "get_weather",
      description: "The weather of a city.",
      inputSchema: z.object({ city: z.string() }),
      run: () => "sun",
    });
    const answer = await client.beta.messages.toolRunner({
      model, messages, max_tokens: 60, max_iterations: 2, tools: [runnable],
    });
    assert(answer.usage.output_tokens > 0, answer);
  },
});
