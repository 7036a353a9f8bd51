// openai for Node: chat, streams, tools and responses.
import OpenAI from "openai";
import { assert, assertArguments, messages, run, tool } from "./checks.mjs";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none", maxRetries: 0 });
const model = "target";
const withTool = { model, messages, tools: [tool], tool_choice: "required", max_tokens: 200 };

await run({
  chat: async () => {
    const answer = await client.chat.completions.create({ model, messages, max_tokens: 8 });
    assert(answer.choices[0].message.content, answer);
  },
  "chat streamed": async () => {
    const stream = await client.chat.completions.create({
      model, messages, max_tokens: 8, stream: true,
    });
    let text = "";
    for await (const chunk of stream) text += chunk.choices[0]?.delta?.content ?? "";
    assert(text, text);
  },
  "required tool": async () => {
    const answer = await client.chat.completions.create(withTool);
    assertArguments(answer.choices[0].message.tool_calls[0].function.arguments);
  },
  "tool streamed": async () => {
    const answer = await client.chat.completions.stream(withTool).finalChatCompletion();
    assertArguments(answer.choices[0].message.tool_calls[0].function.arguments);
  },
  responses: async () => {
    const answer = await client.responses.create({ model, input: "Hello", max_output_tokens: 8 });
    assert(answer.output_text, answer);
  },
  "responses streamed": async () => {
    const stream = client.responses.stream({ model, input: "Hello", max_output_tokens: 8 });
    assert((await stream.finalResponse()).output_text, "no text");
  },
  "responses tool": async () => {
    const answer = await client.responses.create({
      model,
      input: "Weather?",
      tools: [{ type: "function", ...tool.function }],
      tool_choice: "required",
      max_output_tokens: 200,
    });
    assertArguments(answer.output.find((item) => item.type === "function_call").arguments);
  },
});
