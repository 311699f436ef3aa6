//! Owns the two things this host needs of JSON: writing a text, and reading one text field back.

/// A JSON string with its quotes.
pub fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c < ' ' => out += &format!("\\u{:04x}", c as u32),
            c => out.push(c),
        }
    }
    out + "\""
}

/// The value of the first field `name` that is a string; None when there is no such field.
pub fn text_field(object: &str, name: &str) -> Option<String> {
    let key = format!("\"{name}\"");
    let after = object[object.find(&key)? + key.len()..].trim_start().strip_prefix(':')?;
    let mut units = Vec::new();
    let mut chars = after.trim_start().strip_prefix('"')?.chars();
    loop {
        let unit = match chars.next()? {
            '"' => return Some(String::from_utf16_lossy(&units)),
            '\\' => match chars.next()? {
                'n' => 10,
                't' => 9,
                'r' => 13,
                'b' => 8,
                'f' => 12,
                'u' => {
                    let hex: String = chars.by_ref().take(4).collect();
                    u16::from_str_radix(&hex, 16).ok()?
                }
                c => c as u16,
            },
            c => {
                units.extend_from_slice(c.encode_utf16(&mut [0; 2]));
                continue;
            }
        };
        units.push(unit);
    }
}
