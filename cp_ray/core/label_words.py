"""The words that labels are made of: short, neutral, everyday, each one token behind a space.

One token in the vocabularies of SmolLM2, Llama 3 and 4, Qwen and Mistral's tekken
(docs/decisions/0028-labels-are-words.md). Not in it: words that could tell a model something (what
an instruction, a ranking or a part of a prompt is called), plurals of others, and what hurts.
Order and words are part of every label: a change makes all caches cold once, nothing else.
"""

_TEXT = """
academy account acid acoustic acre acrylic actor adapter agenda air aircraft airflow airline
airplane airport aisle album algae algebra alley alloy alphabet altitude aluminum amateur amber
ambient amino ammonia amp anatomy ancestor anchor angle animal ankle ant antenna antique aperture
apex appeal appetite apple arc arch architect area arena aroma array arrow art artery artifact
artisan artwork ash aspect asphalt asset aster asteroid athlete atlas atom auction audience audio
aura auto autumn avatar avenue award axe axis axle backbone backdrop backpack backyard badge bag
baggage bait balance balcony ball ballet balloon bamboo banana band bank banner bargain bark barley
barn barrel barrier base baseball baseline basement basil basin basket bass bat batch bath bathroom
batter battery bay beach beacon bead beam bean bear beauty bed bedroom bee beef beet bell belt
bench benefit beverage bicycle bike binder biology bird blade blanket blend bloom blot blue board
boat bog boil boiler bolt bond book booster boot booth border bottle boundary bow bowl box bracket
brake branch brand brass bread breadth break breakfast breath breeze brick bridge brief broker
bronze broth browser brush bubble bucket bud buffer build bulb bun bunch bundle buoy bus bush
butter butterfly button buyer byte cab cabin cabinet cable cache cage cake calcium calculus
calendar calf camel camera camp campus canal candle candy canine canopy canvas cap capacity capital
capsule captain caption car carbon card cardboard care career cargo carp carpet carriage carrier
cart cartoon cascade case cast castle cat catalog catalyst category cave ceiling cell cement cent
center ceramic cereal ceremony chain chair chalk chamber champion chance change channel charm chart
charter chassis check checker cheer cheese chef cherry chess chicken chip chocolate choice choir
chord chorus chunk cinema cipher circle circuit citizen citrus city claim clamp class classic claw
clay clerk client cliff climate climb clip cloak clock clone closet closure cloth cloud club clue
cluster clutch coach coal coast coat cocoa coconut cod coffee coil coin collar college color column
comedy comet comfort command commerce compact compass composer compost compound computer concept
concert concrete conduit cone console consumer contact contest contour contrast convex cook cookie
copper copy coral cord core corn corner corridor cosmetic cosmic cost costume cottage cotton couch
count counter coup couple courage course courtesy cover craft crane crank crater crawl cream
creator creature creek crest crew cricket crisp critic crop crow crowd crown cruise crust crystal
cube cubic cuff cuisine culture cup curb curl currency current curtain curve cushion custom
customer cycle cylinder dairy dam dance dancer dash dashboard dawn daylight deal debut decimal deck
decor deer degree delegate delight delivery demo den dentist depot depth desert design designer
desk desktop dessert detector device dew dial diameter diamond diary dice diesel digit dinner
dinosaur dioxide diploma diplomat director disc dish disk display distance ditch dock doctor
doctrine doll domain dome donor door dot dough dove dozen draft dragon drain drainage drama drawer
dream dress drift drill driver drone drought drum duck duct duke dust dye eagle ear earth east echo
eclipse ecology economy edge editor effort egg elbow electron element elephant elevator elk ellipse
elm emblem embryo employer enamel energy engine engineer ensemble entry envelope enzyme episode
epoxy equation estate exchange expert explorer eye fabric face facet facility factory family fan
farm farmer fashion fauna feast feather feature feed feeder fence ferry festival fiber field fig
figure filament filler film filter fin finger fir fire fish fixture flag flagship flame flank flap
flare flash flask flavor flex flight float flock floor flora flour flow flower fluid flush flux fly
foam focal focus fog foil fold folder folklore food foot footage football forecast forest fork
format formula fort fortress fortune forum fossil fountain fox fraction frame freight fridge friend
fringe frog frontier frost fruit fuel fungus funnel fur furnace furniture fuse galaxy gallery game
garage garden garlic garment gas gasoline gate gateway gauge gear gel gem gene genome genre
geometry giant gift ginger glass globe gloss glove glow glucose glue glyph goal goat gold golf
gorge grade gradient graduate graft grain gram grammar granite grant grape graph graphic graphite
grass gravel gravity gray green grid grill grocery groom groove ground group growth guardian guest
guide guitar gum gym habitat hall halo hammer hand handle harbor hardware hare harmony harness
harvest hat hatch haven hay head header health heap heat heater hedge height heir helium helmet
helper hem hen herb herd heritage hero hide highway hill hinge hobby hockey holder holiday home
honey hood hoof hook horizon horn horse hose host hotel house hub hue hull humor hurricane hut
hydrogen ice idea image inch indoor ink inn insect integer inventor invoice iris iron island jacket
jam jar jaw jazz jeans jelly jet jewel jewelry joint journal journey joy jug juice jump junction
jungle keeper kernel keyboard kingdom kit kitchen knife knob knot lab lace ladder lake lamb lamp
lance landmark landscape lane language lantern lap laptop laser latitude lattice laundry lava lawn
layer layout lead leader leaf learner leather legacy lemon length lens letter level lever library
lid lift light lightning lime limestone line linear linen liner link lion liquid listener liter
literacy lithium loader lobby lock lodge log logic logo loop luggage lumber lunch machine macro
magazine magma magnet mail mainland maker mall manager manifold mansion mantle manual map marathon
marble margin marine maritime mark marker market marsh mask mast mat match mate material math
matrix mattress maze meal measure mechanic medal median medicine medium meeting melody member
membrane memoir mentor menu merchant mercury mesh metal meteor meter method metric metro micro mile
milk mill mind mine miner mineral mini mint miracle mirror mist mixer mixture mobile mode modem
module moisture mole molecule monitor monkey moon mortar mosaic moss moth motif motion motor mound
mount mountain mouse movie mud museum mushroom music musician nail narrator nature necklace needle
neighbor neon nest net network neuron neutron newspaper nickel nitrogen node north nose notch
notebook novel nozzle nurse nursery nut nutrient nylon oak ocean odor offer office officer offset
oil olive onion opera operator optic orange orbit orbital orchestra organ organic origin ornament
outdoor outer outfit outlet outline oval oven owl oxide oxygen ozone pace pack package packet pad
paddle paint painter painting pair palace pan panel paper parade parcel parent park parking
particle partner passage passport pasta paste pasture patch patent path pathway pattern pause
pavement paw peace peak peanut pear pedal peer pen pencil peninsula pepper peptide perfume pet
petrol pharmacy phase phone photo photon physics piano pickup picnic picture pie piece pier pigment
pile pillar pillow pilot pin pine pink pint pioneer pipe pipeline piston pitch pitcher pizza plan
plane planet plant plaque plasma plaster plastic plate plateau platform platinum player playlist
plug plum pocket poem poet poetry point polar pole pollen polygon polymer pond pool porch port
portal portion portrait post postal poster posture pot potato pottery pouch poultry powder printer
prism prize project projector protein proton pulp pulse pump pupil puppet puppy purple purse puzzle
pyramid quantum quart quarter quartz quest queue rabbit rack radar radial radio radius raft rail
railway rain rainbow rainfall ram ramp ranch range raster ratio ray razor reach reactor receipt
receiver recipe record recorder recovery rectangle reef reflex region register rein relay renewal
repair reporter research reserve reservoir residence resin resort resource rest retail retro
revival rhythm ribbon rice rider ridge ring ripple river road robe robot rock rod roll roller roof
room root rope rose rotary rotor round route router row royal rubber rug rugby ruler runner runway
sack saddle saga sage sail salad saline salmon salt sample sanctuary sand sandwich sap satellite
sauce saw scalar scale scanner scene scenery scent schedule scholar school science scientist scout
scratch screen screw script scroll sculpture sea seal seam season sector sediment seed segment
semester seminar sensor sequel serum server shade shadow shaft shallow shape shark shed sheep sheet
shelf shelter shepherd ship shirt shoe shore shorts shoulder shower shrimp shutter shuttle side
sidewalk sieve sight signal silicon silk silver simplex singer sink site skate sketch ski skirt sky
slack slate sled sleeve slide slider slope slot snack snapshot snow soap soccer society sock socket
soda sodium software soil solar sole solo solvent song soup south soy spa space spark speaker
specimen spectrum speed sphere spider spike spiral spoke sponge spoon sport spot spray spring
sprint spur squad square stable stack stadium stage stair stamp stance staple star starch startup
station statue steady steam steel stellar stem step stereo stew stick stone storage store storm
story stove strand strap straw stream street stride string stripe structure student studio style
suburb subway sugar suit suite sulfur summer summit sun sunlight sunset sunshine supply surface
swing switch symmetry syntax syrup tab table tablet tag tail tailor talent tan tandem tangent tape
tart taxi tea teacher team tech telescope template tempo tennis tensor tent terminal terrace
terrain textile texture theater theme thermal thread throne thunder ticket tide tie tier tiger tile
timber timer tin tip tire tissue toast tomato tone tonic topic topology torch tornado torque tour
tourist towel tower town toy trace track traction tractor trader traffic trail trailer train
trainer tram transport travel tray treasure treaty tree trek triangle tribute trim trio trip trophy
tropical trout truck trumpet trunk tub tube tug tune tunnel turbine turf turkey turnover turtle
tutor tutorial twin umbrella union universe vacation vacuum valley valve van vanilla vapor vase
vault vector vegetable vehicle veil vent venture venue vertex vessel vest video viewer village vine
vintage vinyl violet violin visit visitor visual vitamin volcano voltage volume voyage wagon wall
wallet warehouse wash watch water wave wax weather web wedge weekend welcome west whale wheat wheel
whisper whistle wildlife wind window wing winter wire wolf wood wool workflow workshop world wrist
writer yard yarn yeast yoga zinc zip zone zoo
"""

WORDS = tuple(_TEXT.split())
