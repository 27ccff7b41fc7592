"""Check payloads against JSON Schema, draft 2020-12, strictly: every keyword is enforced or refused by name.

    any value     type enum const
    references    $ref (within the document) $defs $anchor
    combinations  anyOf oneOf allOf not if then else
    objects       properties patternProperties additionalProperties unevaluatedProperties propertyNames required
                  dependentRequired dependentSchemas minProperties maxProperties
    arrays        items prefixItems unevaluatedItems contains minContains maxContains minItems maxItems uniqueItems
    numbers       minimum maximum exclusiveMinimum exclusiveMaximum multipleOf
    strings       minLength maxLength pattern
    annotations   title description default examples deprecated readOnly writeOnly format contentEncoding
                  contentMediaType contentSchema discriminator $schema $id $comment, and x-…

Any other keyword is refused when the schema is compiled: ignoring it would accept what it forbids. A schema can come
from any agent and is applied to the payloads of all, so that no schema and no payload may make a check slow: its steps
are counted and limited, and patterns are matched in linear time (see ``linear_regex``). An integer is defined by its
value: 12.0 is one. Multiples are those of the decimal numbers as written: 0.3 is a multiple of 0.1.
"""

from agentbus.core.jsonschema.validator import Schema, compiled, payload_error, schema_text

__all__ = ["Schema", "compiled", "payload_error", "schema_text"]
