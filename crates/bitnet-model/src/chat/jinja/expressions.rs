//! Tokens to expressions, with jinja2's precedence.

use super::{
    ast::{Arguments, Comparison, Constant, Expression, Operator},
    error::Result,
    parser::{Parser, Word, fail},
    token::Token,
};

fn boxed(expression: Expression) -> Box<Expression> {
    Box::new(expression)
}

impl Parser {
    /// One expression, or several with commas as a tuple. `ends` are words that end it.
    pub(super) fn tuple(&mut self, conditions: bool, ends: &[&str]) -> Result<Expression> {
        self.several(conditions, ends, false)
    }

    fn several(&mut self, conditions: bool, ends: &[&str], parentheses: bool) -> Result<Expression> {
        let mut items = Vec::new();
        let mut is_tuple = false;
        loop {
            let ended = match self.peek() {
                None | Some(Token::VariableEnd | Token::BlockEnd) => true,
                Some(Token::Operator(operator)) => *operator == ")",
                Some(Token::Name(name)) => ends.contains(&&**name),
                _ => false,
            };
            if ended {
                break;
            }
            items.push(if conditions { self.expression()? } else { self.nested(Self::or)? });
            if !self.skip_operator(",") {
                break;
            }
            is_tuple = true;
        }
        match items.pop() {
            Some(only) if !is_tuple => Ok(only),
            None if !parentheses => fail("Expected an expression"),
            last => {
                items.extend(last);
                Ok(Expression::Tuple(items))
            }
        }
    }

    pub(super) fn expression(&mut self) -> Result<Expression> {
        self.nested(|parser| {
            let before = parser.unknown();
            let mut value = parser.or()?;
            while parser.skip_word("if") {
                let test = parser.or()?;
                let otherwise =
                    if parser.skip_word("else") { Some(boxed(parser.expression()?)) } else { None };
                value = Expression::If(boxed(test), boxed(value), otherwise);
                parser.forget(before);
            }
            Ok(value)
        })
    }

    fn or(&mut self) -> Result<Expression> {
        let mut left = self.and()?;
        while self.skip_word("or") {
            left = Expression::Or(boxed(left), boxed(self.and()?));
        }
        Ok(left)
    }

    fn and(&mut self) -> Result<Expression> {
        let mut left = self.not()?;
        while self.skip_word("and") {
            left = Expression::And(boxed(left), boxed(self.not()?));
        }
        Ok(left)
    }

    fn not(&mut self) -> Result<Expression> {
        if self.skip_word("not") {
            self.nested(|parser| Ok(Expression::Not(boxed(parser.not()?))))
        } else {
            self.comparison()
        }
    }

    fn comparison(&mut self) -> Result<Expression> {
        let first = self.sum()?;
        let mut rest = Vec::new();
        loop {
            let operator = match self.peek() {
                Some(Token::Operator(operator)) => match *operator {
                    "==" => Comparison::Equal,
                    "!=" => Comparison::NotEqual,
                    "<" => Comparison::Less,
                    "<=" => Comparison::LessOrEqual,
                    ">" => Comparison::Greater,
                    ">=" => Comparison::GreaterOrEqual,
                    _ => break,
                },
                Some(Token::Name(name)) if name == "in" => Comparison::In,
                Some(Token::Name(name)) if name == "not" => match self.second() {
                    Some(Token::Name(name)) if name == "in" => {
                        self.next();
                        Comparison::NotIn
                    }
                    _ => break,
                },
                _ => break,
            };
            self.next();
            rest.push((operator, self.sum()?));
        }
        Ok(if rest.is_empty() { first } else { Expression::Compare(boxed(first), rest) })
    }

    fn binary(
        &mut self,
        operators: &[(&str, Operator)],
        operand: fn(&mut Self) -> Result<Expression>,
    ) -> Result<Expression> {
        let mut left = operand(self)?;
        while let Some((_, operator)) = operators.iter().find(|(text, _)| self.is_operator(text)) {
            self.next();
            left = Expression::Binary(*operator, boxed(left), boxed(operand(self)?));
        }
        Ok(left)
    }

    fn sum(&mut self) -> Result<Expression> {
        self.binary(&[("+", Operator::Add), ("-", Operator::Subtract)], Self::concatenation)
    }

    fn concatenation(&mut self) -> Result<Expression> {
        let first = self.product()?;
        if !self.is_operator("~") {
            return Ok(first);
        }
        let mut parts = vec![first];
        while self.skip_operator("~") {
            parts.push(self.product()?);
        }
        Ok(Expression::Concatenate(parts))
    }

    fn product(&mut self) -> Result<Expression> {
        const OPERATORS: [(&str, Operator); 4] = [
            ("*", Operator::Multiply),
            ("/", Operator::Divide),
            ("//", Operator::FloorDivide),
            ("%", Operator::Modulo),
        ];
        self.binary(&OPERATORS, Self::power)
    }

    fn power(&mut self) -> Result<Expression> {
        self.binary(&[("**", Operator::Power)], |parser| parser.unary(true))
    }

    fn unary(&mut self, filters: bool) -> Result<Expression> {
        let value = match () {
            () if self.skip_operator("-") => {
                Expression::Negative(boxed(self.nested(|parser| parser.unary(false))?))
            }
            () if self.skip_operator("+") => {
                Expression::Positive(boxed(self.nested(|parser| parser.unary(false))?))
            }
            () => self.primary()?,
        };
        let value = self.postfix(value)?;
        if filters { self.filters(value) } else { Ok(value) }
    }

    fn primary(&mut self) -> Result<Expression> {
        let constant = |constant| Ok(Expression::Constant(constant));
        match self.peek() {
            Some(Token::Operator("(")) => {
                self.next();
                let inner = self.nested(|parser| parser.several(true, &[], true))?;
                self.expect_operator(")")?;
                Ok(inner)
            }
            Some(Token::Operator("[")) => self.list(),
            Some(Token::Operator("{")) => self.dict(),
            Some(Token::Operator(_) | Token::Data(_)) => self.unexpected(),
            _ => match self.next() {
                Some(Token::Name(name)) => match &*name {
                    "true" | "True" => constant(Constant::Bool(true)),
                    "false" | "False" => constant(Constant::Bool(false)),
                    "none" | "None" => constant(Constant::None),
                    _ => Ok(Expression::Name(self.number(&name))),
                },
                Some(Token::Str(mut text)) => {
                    while let Some(Token::Str(more)) = self.peek() {
                        text.push_str(more);
                        self.next();
                    }
                    constant(Constant::Str(text.into()))
                }
                Some(Token::Int(number)) => constant(Constant::integer(number)),
                Some(Token::Float(number)) => constant(Constant::Float(number)),
                _ => fail("Expected an expression"),
            },
        }
    }

    fn list(&mut self) -> Result<Expression> {
        self.next();
        let mut items = Vec::new();
        while !self.skip_operator("]") {
            items.push(self.expression()?);
            if !self.skip_operator(",") {
                self.expect_operator("]")?;
                break;
            }
        }
        Ok(Expression::List(items))
    }

    fn dict(&mut self) -> Result<Expression> {
        self.next();
        let mut items = Vec::new();
        while !self.skip_operator("}") {
            let key = self.expression()?;
            self.expect_operator(":")?;
            items.push((key, self.expression()?));
            if !self.skip_operator(",") {
                self.expect_operator("}")?;
                break;
            }
        }
        Ok(Expression::Dict(items))
    }

    fn postfix(&mut self, mut value: Expression) -> Result<Expression> {
        loop {
            value = match self.peek() {
                Some(Token::Operator(".")) => {
                    self.next();
                    match self.next() {
                        Some(Token::Name(name)) => Expression::Attribute(boxed(value), name.into()),
                        Some(Token::Int(number)) => {
                            let index = Expression::Constant(Constant::integer(number));
                            Expression::Item(boxed(value), boxed(index))
                        }
                        _ => return fail("expected name or number"),
                    }
                }
                Some(Token::Operator("[")) => self.subscript(value)?,
                Some(Token::Operator("(")) => self.call(value)?,
                _ => return Ok(value),
            }
        }
    }

    fn filters(&mut self, mut value: Expression) -> Result<Expression> {
        loop {
            value = match self.peek() {
                Some(Token::Operator("|")) => {
                    self.next();
                    self.filter_chain(Some(value))?
                }
                Some(Token::Operator("(")) => self.call(value)?,
                Some(Token::Name(name)) if name == "is" => self.test(value)?,
                _ => return Ok(value),
            }
        }
    }

    fn call(&mut self, value: Expression) -> Result<Expression> {
        if let Expression::Attribute(_, name) = &value {
            self.check(Word::Method(name))?;
        }
        Ok(Expression::Call(boxed(value), self.arguments()?))
    }

    fn subscript(&mut self, value: Expression) -> Result<Expression> {
        self.next();
        let mut items = Vec::new();
        while !self.is_operator("]") {
            if !items.is_empty() {
                self.expect_operator(",")?;
            }
            match self.subscribed()? {
                Ok(item) => items.push(item),
                Err(slice) => {
                    self.expect_operator("]")?;
                    return if items.is_empty() {
                        Ok(Expression::Slice(boxed(value), slice))
                    } else {
                        fail("a slice in a tuple is not supported")
                    };
                }
            }
        }
        self.expect_operator("]")?;
        let item = match items.pop() {
            Some(only) if items.is_empty() => only,
            last => {
                items.extend(last);
                Expression::Tuple(items)
            }
        };
        Ok(Expression::Item(boxed(value), boxed(item)))
    }

    /// An index, or the three parts of a slice.
    #[allow(clippy::type_complexity, reason = "two kinds of one thing, used once")]
    fn subscribed(&mut self) -> Result<std::result::Result<Expression, Box<[Option<Expression>; 3]>>> {
        let start = if self.is_operator(":") {
            None
        } else {
            let value = self.expression()?;
            if !self.is_operator(":") {
                return Ok(Ok(value));
            }
            Some(value)
        };
        self.expect_operator(":")?;
        let part = |parser: &mut Self| -> Result<Option<Expression>> {
            if [":", "]", ","].iter().any(|end| parser.is_operator(end)) {
                Ok(None)
            } else {
                parser.expression().map(Some)
            }
        };
        let stop = part(self)?;
        let step = if self.skip_operator(":") { part(self)? } else { None };
        Ok(Err(Box::new([start, stop, step])))
    }

    pub(super) fn arguments(&mut self) -> Result<Arguments> {
        const INVALID: &str = "invalid syntax for function call expression";
        let mut arguments = Arguments::default();
        self.expect_operator("(")?;
        while !self.skip_operator(")") {
            let starred = arguments.star.is_some() || arguments.stars.is_some();
            if self.skip_operator("*") {
                if starred {
                    return fail(INVALID);
                }
                arguments.star = Some(boxed(self.expression()?));
            } else if self.skip_operator("**") {
                if arguments.stars.is_some() {
                    return fail(INVALID);
                }
                arguments.stars = Some(boxed(self.expression()?));
            } else if matches!(
                (self.peek(), self.second()),
                (Some(Token::Name(_)), Some(Token::Operator("=")))
            ) {
                if arguments.stars.is_some() {
                    return fail(INVALID);
                }
                let name = self.expect_name()?;
                self.next();
                arguments.named.push((name.into(), self.expression()?));
            } else {
                if starred || !arguments.named.is_empty() {
                    return fail(INVALID);
                }
                arguments.positional.push(self.expression()?);
            }
            if !self.skip_operator(",") {
                self.expect_operator(")")?;
                break;
            }
        }
        Ok(arguments)
    }

    fn test(&mut self, value: Expression) -> Result<Expression> {
        self.next();
        let negated = self.skip_word("not");
        let mut name = self.expect_name()?;
        while self.skip_operator(".") {
            name = format!("{name}.{}", self.expect_name()?);
        }
        self.check(Word::Test(&name))?;
        let mut arguments = Arguments::default();
        let takes_value = match self.peek() {
            Some(Token::Operator("(")) => {
                arguments = self.arguments()?;
                false
            }
            Some(Token::Operator(operator)) => matches!(*operator, "[" | "{"),
            Some(Token::Name(name)) if name == "is" => {
                return fail("You cannot chain multiple tests with is");
            }
            Some(Token::Name(name)) => !matches!(&**name, "else" | "or" | "and"),
            Some(Token::Str(_) | Token::Int(_) | Token::Float(_)) => true,
            _ => false,
        };
        if takes_value {
            let value = self.primary()?;
            arguments.positional.push(self.postfix(value)?);
        }
        let test = Expression::Test(boxed(value), name.into(), arguments);
        Ok(if negated { Expression::Not(boxed(test)) } else { test })
    }
}
