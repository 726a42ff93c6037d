// Inputs for values that a JSON Schema describes: the request's fields, and the arguments of tools.

import { useState } from "preact/hooks";
import { parse, parseInteger, stringify } from "./json";
import { Mistake } from "./mistake";
import type { Schema } from "./openapi";

interface InputProps {
    id: string;
    kind: Schema;
    value: unknown;
    onValue: (value: unknown) => void;
    describedBy?: string | undefined;
    placeholder?: string | undefined;
}

function isTextList(kind: Schema): boolean {
    return kind.type === "array" && kind.items?.type === "string";
}

/** Returns the schema that is shown: of several alternatives a list of texts, or else any JSON. */
function plain(kind: Schema): Schema {
    const options = kind.anyOf?.flatMap((each) => each.anyOf ?? [each]).filter((each) => each.type !== "null") ?? [];
    if (!kind.anyOf) return kind;
    return options.length === 1 ? options[0]! : (options.find(isTextList) ?? {});
}

/** An input for one value; `undefined` is no value. */
export function SchemaInput({ id, kind, value, onValue, describedBy, placeholder }: InputProps) {
    const schema = plain(kind);
    const common = { id, "aria-describedby": describedBy, placeholder };
    if (schema.enum) {
        return (
            <select
                {...common}
                value={value === undefined ? "" : String(value)}
                onChange={(event) => onValue(schema.enum!.find((each) => String(each) === event.currentTarget.value))}
            >
                <option value="">default</option>
                {schema.enum.map((each) => (
                    <option value={String(each)}>{String(each)}</option>
                ))}
            </select>
        );
    }
    if (schema.type === "boolean") {
        return (
            <select
                {...common}
                value={value === undefined ? "" : String(value)}
                onChange={(event) => onValue({ true: true, false: false }[event.currentTarget.value])}
            >
                <option value="">default</option>
                <option value="true">true</option>
                <option value="false">false</option>
            </select>
        );
    }
    if (schema.type === "number" || schema.type === "integer")
        return <NumberInput {...{ id, kind: schema, value, onValue, describedBy, placeholder }} />;
    if (schema.type === "string") {
        return (
            <input
                {...common}
                type="text"
                value={(value as string) ?? ""}
                onInput={(event) => onValue(event.currentTarget.value || undefined)}
            />
        );
    }
    if (isTextList(schema)) {
        const lines = Array.isArray(value) ? value.join("\n") : "";
        return (
            <textarea
                {...common}
                rows={2}
                placeholder={placeholder ?? "one a line"}
                value={lines}
                onInput={(event) => {
                    const given = event.currentTarget.value.split("\n");
                    onValue(given.some((each) => each) ? given : undefined);
                }}
                onBlur={() => Array.isArray(value) && onValue(value.filter((each) => each))}
            />
        );
    }
    return <JsonInput {...{ id, kind: schema, value, onValue, describedBy, placeholder }} />;
}

/** Returns the number that a text spells; none for an empty one. */
function numberOf(text: string, kind: Schema): number | bigint | Mistake | undefined {
    const given = text.trim();
    if (!given) return undefined;
    if (kind.type === "integer") return parseInteger(given) ?? new Mistake(text, `${given} is not an integer.`);
    const number = Number(given);
    return Number.isFinite(number) ? number : new Mistake(text, `${given} is not a number. Its fraction begins with a point.`);
}

function textOf(value: unknown, written: (value: unknown) => string): string {
    return value === undefined ? "" : value instanceof Mistake ? value.text : written(value);
}

function NumberInput({ id, kind, value, onValue, describedBy, placeholder }: InputProps) {
    const [text, setText] = useState(textOf(value, String));
    const number = typeof value === "number" || typeof value === "bigint" ? value : undefined;
    const low = kind.minimum !== undefined && number !== undefined && number < kind.minimum;
    const high = kind.maximum !== undefined && number !== undefined && number > kind.maximum;
    return (
        <input
            id={id}
            type="text"
            inputMode={kind.type === "integer" ? "numeric" : "decimal"}
            aria-describedby={describedBy}
            aria-invalid={value instanceof Mistake || low || high}
            placeholder={placeholder}
            value={value === undefined ? "" : text}
            onInput={(event) => {
                const given = event.currentTarget.value;
                setText(given);
                onValue(numberOf(given, kind));
            }}
        />
    );
}

function jsonOf(text: string): unknown {
    try {
        return text.trim() ? parse(text) : undefined;
    } catch (error) {
        return new Mistake(text, `This is not JSON: ${(error as Error).message}`);
    }
}

function JsonInput({ id, value, onValue, describedBy, placeholder }: InputProps) {
    const [text, setText] = useState(textOf(value, stringify));
    return (
        <textarea
            id={id}
            rows={2}
            class="mono"
            aria-describedby={describedBy}
            aria-invalid={value instanceof Mistake}
            placeholder={placeholder ?? "JSON"}
            value={value === undefined ? "" : text}
            onInput={(event) => {
                const given = event.currentTarget.value;
                setText(given);
                onValue(jsonOf(given));
            }}
        />
    );
}

/** Returns what a form can be made of, from a schema that anybody wrote. */
export function schemaFrom(value: unknown): Schema {
    if (!value || typeof value !== "object") return {};
    const given = value as Record<string, unknown>;
    const made: Schema = {};
    if (typeof given["type"] === "string") made.type = given["type"];
    if (typeof given["description"] === "string") made.description = given["description"];
    if (typeof given["minimum"] === "number") made.minimum = given["minimum"];
    if (typeof given["maximum"] === "number") made.maximum = given["maximum"];
    if (given["items"]) made.items = schemaFrom(given["items"]);
    if (Array.isArray(given["anyOf"])) made.anyOf = given["anyOf"].map(schemaFrom);
    if (Array.isArray(given["required"])) made.required = given["required"];
    const choices = given["enum"];
    if (Array.isArray(choices) && choices.every((each) => typeof each !== "object")) made.enum = choices;
    const properties = given["properties"];
    if (properties && typeof properties === "object")
        made.properties = Object.fromEntries(
            Object.entries(properties).map(([name, each]) => [name, schemaFrom(each)]),
        );
    return made;
}

/** A form for an object: an input for each property of its schema. */
export function ObjectForm({
    id,
    schema,
    value,
    onValue,
}: {
    id: string;
    schema: Schema;
    value: Record<string, unknown>;
    onValue: (value: Record<string, unknown>) => void;
}) {
    const properties = Object.entries(schema.properties ?? {});
    if (!properties.length)
        return (
            <SchemaInput
                id={id}
                kind={{}}
                value={value}
                onValue={(each) => onValue((each as Record<string, unknown>) ?? {})}
            />
        );
    return (
        <>
            {properties.map(([name, property]) => (
                <p class="field" key={name}>
                    <label for={`${id}-${name}`}>
                        <code>{name}</code>
                        {schema.required?.includes(name) && " (required)"}
                    </label>
                    <SchemaInput
                        id={`${id}-${name}`}
                        kind={property}
                        value={value[name]}
                        describedBy={property.description ? `${id}-${name}-help` : undefined}
                        onValue={(each) => {
                            const { [name]: _, ...others } = value;
                            onValue(each === undefined ? others : { ...others, [name]: each });
                        }}
                    />
                    {property.description && (
                        <span id={`${id}-${name}-help`} class="help">
                            {property.description}
                        </span>
                    )}
                </p>
            ))}
        </>
    );
}
