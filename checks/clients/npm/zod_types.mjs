// Prints types of zod as JSON: name, JSON Schema, and values with zod's own verdict.

import { z } from "zod";

const Category = z.object({
  name: z.string(),
  get children() {
    return z.array(Category);
  },
});
const Linked = z.object({
  value: z.number(),
  get next() {
    return Linked.nullable();
  },
});
const User = z.object({ name: z.string(), age: z.int().min(0), email: z.email().optional() });
const Fruit = { Apple: "apple", Pear: "pear" };
const Shape = z.discriminatedUnion("kind", [
  z.object({ kind: z.literal("circle"), radius: z.number() }),
  z.object({ kind: z.literal("square"), side: z.number() }),
]);

// A name, a type, and values of which at least one is valid.
const TYPES = [
  ["string", z.string(), ["", "any text"]],
  ["string min", z.string().min(2), ["ab"]],
  ["string max", z.string().max(3), ["abc", "abcd"]],
  ["string length", z.string().length(4), ["abcd"]],
  ["string nonempty", z.string().nonempty(), ["a"]],
  ["string regex", z.string().regex(/^[a-z]+-[0-9]{2}$/), ["ab-12", "ab-1"]],
  ["string startsWith", z.string().startsWith("ab"), ["abc"]],
  ["string endsWith", z.string().endsWith("yz"), ["xyz"]],
  ["string includes", z.string().includes("mid"), ["a mid b"]],
  ["string lowercase", z.string().lowercase(), ["abc", "ABC"]],
  ["string uppercase", z.string().uppercase(), ["ABC"]],
  ["string regex and length", z.string().regex(/^[a-z]+$/).min(2).max(4), ["abc", "abcdef"]],
  ["email", z.email(), ["a@b.example", "a@b"]],
  ["url", z.url(), ["https://a.example/b?c=d"]],
  ["uuid", z.uuid(), ["123e4567-e89b-42d3-a456-426614174000"]],
  ["uuid v4", z.uuidv4(), ["123e4567-e89b-42d3-a456-426614174000"]],
  ["guid", z.guid(), ["123e4567-e89b-02d3-0456-426614174000"]],
  ["cuid", z.cuid(), ["cjld2cjxh0000qzrmn831i7rn"]],
  ["cuid2", z.cuid2(), ["tz4a98xxat96iws9zmbrgj3a"]],
  ["ulid", z.ulid(), ["01ARZ3NDEKTSV4RRFFQ69G5FAV"]],
  ["nanoid", z.nanoid(), ["V1StGXR8_Z5jdHi6B-myT"]],
  ["emoji", z.emoji(), ["\u{1F600}"]],
  ["ipv4", z.ipv4(), ["10.0.0.1", "10.0.0.256"]],
  ["ipv6", z.ipv6(), ["2001:db8::1"]],
  ["cidrv4", z.cidrv4(), ["10.0.0.0/8"]],
  ["cidrv6", z.cidrv6(), ["2001:db8::/32"]],
  ["base64", z.base64(), ["YWJj", "YW="]],
  ["base64url", z.base64url(), ["YWJj"]],
  ["e164", z.e164(), ["+15555550100"]],
  ["jwt", z.jwt(), ["eyJhbGciOiJIUzI1NiJ9.e30.c2ln"]],
  ["hostname", z.hostname(), ["a.example"]],
  ["iso date", z.iso.date(), ["2026-11-29", "2026-13-01"]],
  ["iso time", z.iso.time(), ["12:30:00"]],
  ["iso datetime", z.iso.datetime(), ["2026-11-29T12:30:00Z"]],
  ["iso datetime offset", z.iso.datetime({ offset: true }), ["2026-11-29T12:30:00+01:00"]],
  ["iso duration", z.iso.duration(), ["P1DT2H"]],
  ["template literal", z.templateLiteral(["v", z.int(), ".", z.enum(["a", "b"])]), ["v1.a"]],
  ["number", z.number(), [1.5, -2]],
  ["number bounds", z.number().min(-1).max(1), [0.5]],
  ["number exclusive bounds", z.number().gt(0).lt(1), [0.5, 1]],
  ["positive", z.number().positive(), [1]],
  ["nonnegative", z.number().nonnegative(), [0]],
  ["negative", z.number().negative(), [-1]],
  ["int", z.int(), [7, 7.5]],
  ["int32", z.int32(), [7, 2147483648]],
  ["uint32", z.uint32(), [7, -1]],
  ["float32", z.float32(), [1.5]],
  ["float64", z.float64(), [1.5]],
  ["int bounds", z.int().min(3).max(12), [3, 13]],
  ["multipleOf", z.int().multipleOf(5), [10, 11]],
  ["multipleOf fraction", z.number().multipleOf(0.5), [1.5]],
  ["boolean", z.boolean(), [true]],
  ["null", z.null(), [null]],
  ["any", z.any(), [{ a: [1] }]],
  ["unknown", z.unknown(), [[1]]],
  ["json", z.json(), [{ a: [1, null] }]],
  ["literal", z.literal("on"), ["on", "off"]],
  ["literals", z.literal(["a", 1, true]), ["a", 1]],
  ["enum", z.enum(["red", "green"]), ["red", "blue"]],
  ["native enum", z.enum(Fruit), ["apple"]],
  ["nullable", z.string().nullable(), [null, "a"]],
  ["default", z.object({ a: z.string().default("x") }), [{ a: "y" }, {}]],
  ["array", z.array(z.int()), [[1, 2], ["a"]]],
  ["array bounds", z.array(z.int()).min(1).max(2), [[1], [1, 2, 3]]],
  ["tuple", z.tuple([z.string(), z.number()]), [["a", 1], ["a"]]],
  ["tuple with rest", z.tuple([z.string()], z.number()), [["a", 1, 2]]],
  ["object", User, [{ name: "a", age: 1 }, { name: "a", age: 1, email: "a@b.example" }]],
  ["strict object", z.strictObject({ a: z.string() }), [{ a: "b" }, { a: "b", c: 1 }]],
  ["loose object", z.looseObject({ a: z.string() }), [{ a: "b" }]],
  ["catchall", z.object({ a: z.string() }).catchall(z.number()), [{ a: "b", c: 1 }]],
  ["partial object", User.partial(), [{}, { age: 2 }]],
  ["nested objects", z.object({ a: z.object({ b: z.array(User) }) }), [{ a: { b: [] } }]],
  ["record", z.record(z.string(), z.number()), [{ a: 1 }, { a: "b" }]],
  ["record of an enum", z.record(z.enum(["a", "b"]), z.int()), [{ a: 1, b: 2 }, { a: 1 }]],
  ["record by regex", z.record(z.string().regex(/^k_[a-z]+$/), z.int()), [{ k_a: 1 }]],
  ["union", z.union([z.string(), z.number()]), ["a", 1]],
  ["union of objects", z.union([z.object({ a: z.int() }), z.object({ b: z.int() })]), [{ a: 1 }]],
  ["discriminated union", Shape, [{ kind: "circle", radius: 1 }, { kind: "circle", side: 1 }]],
  ["exclusive union", z.xor([z.string(), z.number()]), ["a"]],
  ["intersection", z.intersection(z.object({ a: z.int() }), z.object({ b: z.int() })), [{ a: 1, b: 2 }]],
  ["recursive object", Category, [{ name: "a", children: [{ name: "b", children: [] }] }]],
  ["linked list", Linked, [{ value: 1, next: { value: 2, next: null } }]],
  ["lazy", z.lazy(() => z.array(z.string())), [["a"]]],
];

const POOL = [
  null, true, 0, 1, -1, 5, 2.5, 1e10, "", "a", "abc", "red", "2026-11-29", [], [1], ["a"], {},
  { a: 1 }, { a: "b" }, { name: "a" }, { kind: "circle" }, [null],
];

const found = TYPES.map(([name, type, values]) => ({
  name,
  schema: z.toJSONSchema(type, { io: "input" }),
  instances: [...values, ...POOL].map((value) => [JSON.stringify(value), type.safeParse(value).success]),
}));
console.log(JSON.stringify(found));
