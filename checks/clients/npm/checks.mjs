// Runs the checks of a client program and prints one line of JSON for each.
export const tool = {
  type: "function",
  function: {
    name: "get_weather",
    description: "The weather of a city.",
    parameters: {
      type: "object",
      properties: { city: { enum: ["Paris", "Oslo"] }, days: { enum: [1, 2, 3] } },
      required: ["city", "days"],
      additionalProperties: false,
    },
    strict: true,
  },
};
export const messages = [{ role: "user", content: "What is the weather in Paris?" }];

export function assert(condition, shown) {
  if (!condition) throw new Error(JSON.stringify(shown) ?? "no value");
}

export function assertArguments(value) {
  const found = typeof value === "string" ? JSON.parse(value) : value;
  assert(["Paris", "Oslo"].includes(found.city) && [1, 2, 3].includes(found.days), found);
}

export async function run(checks) {
  let failed = false;
  for (const [check, work] of Object.entries(checks)) {
    let error = "";
    try {
      await work();
    } catch (failure) {
      error = String(failure).slice(0, 300);
      failed = true;
    }
    console.log(JSON.stringify({ check, error }));
  }
  process.exit(failed ? 1 : 0);
}
