// Vercel's ai: text, streams, generateObject and tools.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, streamText, tool } from "ai";
import { z } from "zod";
import { assert, assertArguments, run } from "./checks.mjs";

const provider = createOpenAICompatible({
  name: "specdecode",
  baseURL: `${process.argv[2]}/v1`,
  supportsStructuredOutputs: true,
});
const model = provider("target");
const schema = z.object({
  city: z.enum(["Paris", "Oslo"]),
  days: z.union([z.literal(1), z.literal(2), z.literal(3)]),
});
const prompt = "What is the weather in Paris?";
const tools = { get_weather: tool({ description: "The weather.", inputSchema: schema }) };
const common = { model, prompt, maxRetries: 0, maxOutputTokens: 200 };

await run({
  generateText: async () => {
    assert((await generateText({ ...common, maxOutputTokens: 8 })).text, "no text");
  },
  streamText: async () => {
    let text = "";
    for await (const part of streamText({ ...common, maxOutputTokens: 8 }).textStream) text += part;
    assert(text, text);
  },
  generateObject: async () => {
    assertArguments((await generateObject({ ...common, schema })).object);
  },
  tools: async () => {
    const answer = await generateText({ ...common, tools, toolChoice: "required" });
    assertArguments(answer.toolCalls[0].input);
  },
  "tools streamed": async () => {
    const answer = streamText({ ...common, tools, toolChoice: "required" });
    assertArguments((await answer.toolCalls)[0].input);
  },
});
